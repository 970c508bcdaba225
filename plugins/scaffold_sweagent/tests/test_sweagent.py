"""The scaffold `sweagent`: how `mini` is started, and how it is known how it ended."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from ale.specs.driver import DriverContext
from ale.specs.sandbox import ExecResult
from ale.specs.sandbox_protocols import Snapshots
from ale_endpoint.agents import AgentVariables
from ale_sweagent import SweAgent, scaffold
from ale_testing.fake_sandboxes import FolderSandbox

LINE = AgentVariables("--yolo; it's $HOME", "http://127.0.0.1:8600/v1", "key-1")


def agent(**settings: Any) -> SweAgent:
    return SweAgent(SweAgent.Config(**settings), DriverContext())


def test_mini_is_started_with_the_task_as_one_word() -> None:
    launch = agent(config=("mini.yaml", "agent.system_template=Hi."), step_limit=9).launch(LINE)
    words = shlex.split(launch.command)
    assert words[0] == "/opt/ale-agents/mini-swe-agent-2.4.6/bin/mini"
    assert words[-2:] == ["--task", LINE.task]
    assert [words[i + 1] for i, word in enumerate(words) if word == "-c"] == [
        "mini.yaml",
        "agent.system_template=Hi.",
        "agent.step_limit=9",
    ]
    assert launch.env["OPENAI_API_BASE"] == LINE.base_url
    assert launch.env["OPENAI_API_KEY"] == "key-1"


def test_an_image_that_has_mini_needs_no_recipe() -> None:
    own = agent(install=False)
    assert own.recipe is None
    assert own.launch(LINE).command.startswith("mini ")
    assert SweAgent.needs(own.config) == {}
    assert SweAgent.needs(agent().config) == {"sandbox": (Snapshots,)}


@pytest.mark.parametrize(
    ("record", "code", "ended"),
    [
        ({"info": {"exit_status": "Submitted"}}, 0, "finish"),
        ({"info": {"exit_status": "LimitsExceeded"}}, 0, "max_turns"),
        ({"info": {"exit_status": "TimeExceeded"}}, 0, "agent_timeout"),
        ({"info": {"exit_status": "RepeatedFormatError"}}, 0, "agent_error"),
        ({"info": {"exit_status": "LimitsExceeded"}}, 1, "agent_error"),
        ({"info": {"exit_status": []}}, 0, "agent_error"),
        ({"info": {"exit_status": "Submitted"}}, 1, "agent_error"),
        ([], 0, "agent_error"),
        (None, 0, "agent_error"),
    ],
)
async def test_its_own_record_says_how_it_ended(
    record: Any, code: int, ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaffold, "RECORD", "record.json")
    async with FolderSandbox() as box:
        if record is not None:
            await box.upload({"record.json": json.dumps(record).encode()})
        assert await agent().end_reason(ExecResult(code, b"", b"", 1.0), box) == ended
