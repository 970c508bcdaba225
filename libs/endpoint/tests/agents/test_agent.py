"""Agents that are commands: what they are told, that no text becomes a command, and how their ends are told."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from ale.errors import AgentError, ConfigError, RequestRefused, SandboxError
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
from ale.task import Task, TaskTests
from ale_endpoint.agents import AgentVariables, CommandAgent, CommandAgentConfig, Launch, node_recipe, python_recipe
from ale_endpoint.agents.agent_variables import base_url
from ale_testing.fake_engines import session
from ale_testing.fake_sandboxes import FolderSandbox

NASTY = 'It\'s "here"; echo $HOME `id` $(id) ${ALE_API_KEY}\n\\ größe ✓ {x}'
LINE = AgentVariables(NASTY, "http://127.0.0.1:8600/v1", "key-1")
ASK = """
import json, os, sys, urllib.request
body = {"model": os.environ["ALE_MODEL"], "messages": [{"role": "user", "content": os.environ["ALE_TASK"]}]}
request = urllib.request.Request(os.environ["ALE_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
    {"authorization": "Bearer " + os.environ["ALE_API_KEY"], "content-type": "application/json"})
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"], flush=True)
"""


class Asking(CommandAgent):
    """An agent that asks once, then does what it is told to."""

    first, then = ASK, ""
    files: Mapping[str, str] = {}

    def launch(self, variables: AgentVariables) -> Launch:
        return Launch(variables.command([sys.executable, "-c", self.first + self.then]), files=self.files)


async def run(agent: CommandAgent, answers: list[str | Exception], box: FolderSandbox) -> tuple[str, Any]:
    task = Task(id="t", instruction=NASTY, tests=TaskTests(command="true"))
    async with agent, session(answers) as line:
        return await agent.run(task, box, line), line


def asking(then: str = "", **config: Any) -> Asking:
    agent = Asking(CommandAgentConfig(**config), DriverContext())
    agent.then = then
    return agent


async def test_an_agent_is_told_its_task_and_the_endpoint_and_what_it_prints_is_observed() -> None:
    async with FolderSandbox() as box:
        ended, line = await run(asking("print('bye', file=sys.stderr)"), ["It is plum."], box)
    assert ended == "finish"
    assert line.recorder.sequences[0].messages[0].content == NASTY
    (observed,) = line.observations
    assert (observed.chunk, observed.exit_code) == (0, 0)
    assert "It is plum." in observed.text
    assert "bye" in observed.text


@pytest.mark.parametrize(
    ("then", "config", "ended"),
    [
        ("sys.exit(3)", {}, "agent_error"),
        ("import time; time.sleep(60)", {"timeout_s": 6.0}, "agent_timeout"),
        ("os.kill(os.getpid(), 9)", {}, "agent_error"),
    ],
)
async def test_how_an_agent_ended_is_told_in_a_word(then: str, config: dict[str, Any], ended: str) -> None:
    async with FolderSandbox() as box:
        assert (await run(asking(then, **config), ["plum"], box))[0] == ended


async def test_the_end_of_a_long_output_is_what_is_kept() -> None:
    async with FolderSandbox() as box:
        _, line = await run(asking("print('x' * 5000, 'é' * 50 + 'end')", output_chars=100), ["plum"], box)
    text = line.observations[0].text
    assert len(text) == 100
    assert text.endswith("é" * 50 + "end\n")


async def test_an_agent_that_never_asks_is_a_failure_with_what_it_said() -> None:
    class Missing(Asking):
        def launch(self, variables: AgentVariables) -> Launch:
            return Launch("no-such-agent --yes")

    async with FolderSandbox() as box:
        with pytest.raises(AgentError, match=r"exit code 127 and never asked the model.*no-such-agent"):
            await run(Missing(CommandAgentConfig(), DriverContext()), ["plum"], box)


async def test_an_agent_whose_time_is_up_is_ended_and_what_it_printed_is_kept() -> None:
    async with AsyncExitStack() as stack, FolderSandbox() as box, session(["plum"]) as line:
        task = Task(id="t", instruction="x", tests=TaskTests(command="true"))
        agent = await stack.enter_async_context(asking("import time; time.sleep(60)"))
        episode = asyncio.ensure_future(agent.run(task, box, line))
        for _ in range(3000):
            if line.recorder.chunks:
                break
            await asyncio.sleep(0.02)
        episode.cancel()
        await asyncio.wait([episode])
        assert episode.cancelled()
        assert not box.running
        assert line.observations[0].exit_code is None


async def test_a_dead_sandbox_is_no_fault_of_the_agents() -> None:
    async with FolderSandbox() as box:
        box.die()
        with pytest.raises(SandboxError):
            await run(asking(), ["plum"], box)


async def test_a_sandbox_without_a_way_to_the_model_is_refused() -> None:
    async with FolderSandbox() as box:
        box.spec = SandboxSpec(network="allow", allow=("pypi.org:443",))
        with pytest.raises(ConfigError, match=r"set needs\.network to endpoint-only"):
            await run(asking(), ["plum"], box)


async def test_without_a_network_the_model_is_asked_through_files() -> None:
    async with FolderSandbox() as box:
        box.spec = SandboxSpec(network="none")
        ended, line = await run(asking(), ["It is plum."], box)
        assert ended == "finish"
        assert line.recorder.sequences[0].messages[0].content == NASTY
        assert "It is plum." in line.observations[0].text
        left = await box.exec("ls /tmp/ale-model-kit.log*")
        assert left.exit_code != 0, "nothing of it stays"


PICTURE = """
body["messages"][0]["content"] = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
request.data = json.dumps(body).encode()
try:
    print(urllib.request.urlopen(request).status)
except urllib.error.HTTPError as error:
    print(error.status, error.read().decode())
"""


@pytest.mark.parametrize("network", ["full", "none"])
async def test_a_refused_picture_is_the_sessions_fault_and_a_setting_leaves_pictures_out(network: Any) -> None:
    async with FolderSandbox() as box:
        box.spec = SandboxSpec(network=network)
        ended, line = await run(asking(PICTURE), ["plum"], box)
        assert ended == "finish", "whatever the agent makes of it"
        assert "only text is supported" in line.observations[0].text
        assert isinstance(line.fault, RequestRefused), "the episode fails, and is not scored"
        _, line = await run(asking(PICTURE, pictures="leave_out"), ["plum", "pear"], box)
        assert line.fault is None
        assert line.recorder.sequences[1].messages[0].content == "[picture left out]"


async def test_an_agent_whose_only_request_is_refused_has_asked_the_model() -> None:
    async with FolderSandbox() as box:
        agent = asking()
        agent.then, agent.first = PICTURE, ASK.rpartition("print")[0]
        _, line = await run(agent, ["plum"], box)
        assert line.calls == 0
        assert isinstance(line.fault, RequestRefused)


async def test_an_agent_is_told_how_much_the_model_takes() -> None:
    async with FolderSandbox() as box:
        agent = asking("print('$ALE_MAX_CONTEXT', os.environ['ALE_MAX_CONTEXT'], os.environ['ALE_MAX_TOKENS'])")
        _, line = await run(agent, ["plum"], box)
        assert "60000 60000 4096" in line.observations[0].text


async def test_without_a_network_an_agent_of_another_api_is_refused() -> None:
    agent = asking()
    agent.dialect = "anthropic"
    with pytest.raises(ConfigError, match=r"this one speaks the API 'anthropic'; set needs\.network to endpoint-only"):
        await agent.prepare(SandboxSpec(network="none"), None)  # type: ignore[arg-type]


async def test_a_sandbox_is_told_where_the_model_is() -> None:
    async with asking() as agent:
        spec = await agent.prepare(SandboxSpec(network="endpoint-only"), None)  # type: ignore[arg-type]
        assert spec.endpoint is not None
        assert spec.endpoint.startswith("http://127.0.0.1:")
        assert (await agent.prepare(SandboxSpec(network="none"), None)).endpoint is None  # type: ignore[arg-type]


async def test_files_are_there_before_the_agent_starts() -> None:
    async with FolderSandbox() as box:
        agent = asking("print(open(os.path.expanduser('~/.agent/settings')).read(), open('here').read())")
        agent.files = {"~/.agent/settings": "home", "here": "work"}
        _, line = await run(agent, ["plum"], box)
        assert "home work" in line.observations[0].text


async def test_no_text_of_a_task_is_read_as_a_command(tmp_path: Path) -> None:
    words = LINE.command([sys.executable, "-c", "import sys; sys.stdout.write(sys.argv[1])", "$ALE_TASK"])
    text = LINE.command(f"{sys.executable} -c 'import sys; sys.stdout.write(sys.argv[1])' \"$ALE_TASK\"")
    async with FolderSandbox() as box:
        for command in (words, text):
            done = await box.exec(command, env=LINE.variables)
            assert done.stdout.decode() == NASTY


def test_names_are_filled_in_and_other_dollars_stay() -> None:
    assert LINE.fill("$ALE_MODEL ${ALE_API_KEY}x $HOME $ALE_NOTHING $$") == "policy key-1x $HOME $ALE_NOTHING $$"
    filled = LINE.fill_file("~/.agent/settings.json", '{"prompt": "do: $ALE_TASK", "env": "$PATH"}')
    assert json.loads(filled) == {"prompt": f"do: {NASTY}", "env": "$PATH"}
    assert LINE.fill_file("notes.txt", "$ALE_TASK") == NASTY


def test_clients_of_each_api_have_the_base_url_that_they_want() -> None:
    urls = {dialect: base_url("http://h:1", dialect) for dialect in ("chat", "responses", "anthropic")}
    assert urls == {"chat": "http://h:1/v1", "responses": "http://h:1/v1", "anthropic": "http://h:1"}


@pytest.mark.parametrize(
    "recipe",
    [python_recipe("a-1", ("a==1",), "a", 12), node_recipe("b-1", "@b/b@1", "b", 22)],
    ids=lambda recipe: recipe.name,
)
async def test_recipes_are_scripts_that_a_shell_can_read(recipe: Any) -> None:
    async with FolderSandbox() as box:
        for text in (recipe.script, recipe.check):
            done = await box.exec("sh -n", stdin=text.encode())
            assert (done.exit_code, done.output) == (0, "")
    assert recipe.place == f"/opt/ale-agents/{recipe.name}"


async def test_a_python_that_is_too_old_is_told_so() -> None:
    recipe = python_recipe("a-1", ("a==1",), "a", 99)
    async with FolderSandbox() as box:
        done = await box.exec(f"set -e\n{recipe.script}", env={"ALE_AGENT": str(box.folder / "a")})
    assert done.exit_code == 1
    assert "Python 3.99 or newer is needed" in done.output
