"""The scaffold `openhands`: how its runner is started."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from pydantic import ValidationError

from ale.specs.driver import DriverContext
from ale.specs.sandbox_protocols import Snapshots
from ale_endpoint.agents import AgentVariables
from ale_openhands import OpenHands

LINE = AgentVariables("Say it's $HOME.", "http://127.0.0.1:8600/v1", "key-1")


def agent(**settings: Any) -> OpenHands:
    return OpenHands(OpenHands.Config(**settings), DriverContext())


def test_the_runner_is_handed_to_the_agents_python_with_its_settings() -> None:
    launch = agent(tools=["terminal"], max_iterations=7).launch(LINE)
    assert launch.command == "/opt/ale-agents/openhands-1.58.0/bin/python -"
    assert json.loads(launch.env["ALE_OPENHANDS"]) == {
        "tools": ["terminal"],
        "system_prompt": None,
        "max_iterations": 7,
    }
    names = {node.id for node in ast.walk(ast.parse(launch.stdin)) if isinstance(node, ast.Name)}
    assert {"LLM", "Agent", "Conversation"} <= names


def test_an_image_that_has_it_needs_no_recipe() -> None:
    own = agent(install=False, python="/venv/bin/python")
    assert own.recipe is None
    assert own.launch(LINE).command == "/venv/bin/python -"
    assert OpenHands.needs(own.config) == {}
    assert OpenHands.needs(agent().config) == {"sandbox": (Snapshots,)}


def test_a_tool_that_it_does_not_have_is_refused() -> None:
    with pytest.raises(ValidationError, match="browser"):
        agent(tools=["browser"])
