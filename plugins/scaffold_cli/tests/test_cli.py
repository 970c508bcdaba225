"""The scaffold `cli`: what run files may say, and what becomes of it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from ale.errors import ConfigError
from ale.registry.drivers import validate_settings
from ale.specs.driver import DriverContext
from ale.specs.sandbox_protocols import Snapshots
from ale.task import Task, TaskTests
from ale_cli import CommandLineAgent
from ale_endpoint.agents import AgentVariables
from ale_testing.fake_engines import session
from ale_testing.fake_sandboxes import FolderSandbox

LINE = AgentVariables('Say "plum".', "http://127.0.0.1:8600/v1", "key-1")


def scaffold(**settings: Any) -> CommandLineAgent:
    return CommandLineAgent(validate_settings(CommandLineAgent, settings, "scaffold"), DriverContext())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "give 'agent', one of qwen-code, iflow, or a 'command' of your own"),
        ({"agent": "qwen"}, "there is no agent 'qwen'; the shipped ones are qwen-code, iflow"),
        ({"command": "x", "options": ["-v"]}, "'options' goes with a shipped agent's command"),
        ({"command": "x", "dialect": "grpc"}, "scaffold.dialect"),
        ({"command": "x", "recipe": {"name": "a"}}, "scaffold.recipe.script"),
        ({"command": "x", "enviroment": {}}, "enviroment"),
    ],
)
def test_settings_that_make_no_agent_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        scaffold(**settings)
    assert sentence in str(refused.value)


def test_qwen_code_is_told_of_the_episode_and_asks_nothing_else() -> None:
    agent = scaffold(agent="qwen-code")
    assert agent.recipe is not None
    launch = agent.launch(LINE)
    assert agent.recipe.place in launch.command
    assert launch.command.endswith("-p 'Say \"plum\".'")
    assert launch.env["OPENAI_BASE_URL"] == LINE.base_url
    assert launch.env["OPENAI_API_KEY"] == "key-1"
    assert json.loads(launch.files["~/.qwen/settings.json"])["privacy"] == {"usageStatisticsEnabled": False}


def test_options_stand_at_the_end_of_a_shipped_agents_command() -> None:
    launch = scaffold(agent="qwen-code", options=["--bare", "--system-prompt", "You are $ALE_MODEL."]).launch(LINE)
    assert launch.command.endswith("--bare --system-prompt 'You are policy.'")


def test_settings_of_the_run_file_win_over_a_shipped_agents() -> None:
    own = {"~/.qwen/settings.json": '{"tools": {"core": ["run_shell_command"]}, "note": "$ALE_TASK"}'}
    agent = scaffold(agent="qwen-code", files=own, env={"OPENAI_MODEL": "other", "MORE": "$ALE_MODEL"}, install=False)
    launch = agent.launch(LINE)
    assert json.loads(launch.files["~/.qwen/settings.json"])["note"] == LINE.task
    assert (launch.env["OPENAI_MODEL"], launch.env["MORE"]) == ("other", "policy")
    assert agent.recipe is None


def test_what_has_to_be_installed_needs_snapshots_and_nothing_else_does() -> None:
    own = {"name": "a-1", "script": "true", "check": "true", "hosts": ["a.example.org:443"]}
    assert scaffold(command="a", recipe=own).recipe is not None
    assert CommandLineAgent.needs(scaffold(command="a", recipe=own).config) == {"sandbox": (Snapshots,)}
    for settings in ({"command": "a"}, {"agent": "iflow"}, {"agent": "qwen-code", "install": False}):
        assert CommandLineAgent.needs(scaffold(**settings).config) == {}


def test_anthropics_clients_have_a_base_url_without_a_version() -> None:
    assert scaffold(command="a", dialect="anthropic").dialect == "anthropic"
    assert scaffold(command="a").dialect == "chat"


@pytest.mark.parametrize(
    ("dialect", "path", "body"),
    [
        ("chat", "/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("responses", "/responses", {"input": "hi", "store": False}),
        ("anthropic", "/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}),
    ],
)
async def test_a_command_of_ones_own_speaks_any_of_the_apis(dialect: str, path: str, body: dict[str, Any]) -> None:
    program = (
        "import os, sys, urllib.request as u; r = u.Request(os.environ['ALE_BASE_URL'] + sys.argv[1], "
        "sys.stdin.buffer.read(), {'authorization': 'Bearer ' + os.environ['KEY'], 'content-type': "
        "'application/json'}); print(u.urlopen(r).read())"
    )
    agent = scaffold(
        command=[sys.executable, "-c", program, path],
        stdin=json.dumps({"model": "$ALE_MODEL", **body}),
        dialect=dialect,
        env={"KEY": "$ALE_API_KEY"},
    )
    task = Task(id="t", instruction="x", tests=TaskTests(command="true"))
    async with agent, FolderSandbox() as box, session(["plum"]) as line:
        assert await agent.run(task, box, line) == "finish", line.observations
        assert "plum" in line.observations[0].text
