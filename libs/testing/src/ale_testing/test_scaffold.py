"""These tests check that an agent runs to its end whatever the model answers, and does not hide errors of others.

An agent that is a separate process (`over_http`) runs here in a folder of this machine, so give it settings that allow
this. An agent with a recipe cannot do so, and the tests that would have to run it are left out. So are those of
commands where the scaffold says that it uses no sandbox (`uses_sandbox`); a call of the sandbox is then its fault."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress

import pytest

from ale.errors import BudgetExceeded, EngineError, SandboxError
from ale.rollout.no_sandbox import NoSandbox
from ale.specs.sandbox import Sandbox, SandboxSpec
from ale.task import Task, TaskTests
from ale_testing.async_tests import async_test, cancelled, fails_with
from ale_testing.fake_engines import session
from ale_testing.fake_sandboxes import FolderSandbox
from ale_testing.plugin_under_test import Subject

TASK = Task(
    id="kit-1",
    instruction="Write the word größe ✓ into the file 'out'.",
    tests=TaskTests(command="grep -q größe out"),
    files={"given.txt": "one\ntwo\n"},
)
BABBLE = {
    "an empty answer": "",
    "plain words": "I think that the answer is 42.",
    "text of many scripts": "größe ✓ \U0001f600 日本語 \x00 \u202e",
    "a call that is no JSON": "<tool_call>\n{'name': shell}\n</tool_call>",
    "half a call": '<tool_call>\n{"name": "shell", "argu',
    "a call of a tool that there is not": '<tool_call>\n{"name": "no_such_tool", "arguments": {}}\n</tool_call>',
    "a call with wrong arguments": '<tool_call>\n{"name": "shell", "arguments": {"command": 3, "x": [null]}}\n'
    "</tool_call>",
    "a call with half a character": '<tool_call>\n{"name": "shell", "arguments": {"command": "echo \\ud800"}}\n'
    "</tool_call>",
    "a call without arguments": '<tool_call>\n{"name": "shell"}\n</tool_call>',
    "a long answer": "word " * 2000,
}


async def own_task(subject: Subject) -> Task:
    """The task that the agent gets: the first of `--ale-tasks`, or the kit's."""
    return (await subject.tasks(TASK))[0]


def sandbox_for(subject: Subject, task: Task) -> Sandbox:
    """A folder of this machine, or what a run has where nobody uses a sandbox."""
    return FolderSandbox(task) if subject.uses_sandbox else NoSandbox(SandboxSpec())


@pytest.mark.ale_agent
@pytest.mark.parametrize("says", BABBLE, ids=lambda says: says.replace(" ", "-"))
def test_an_episode_ends_whatever_the_model_says(subject: Subject, says: str) -> None:
    @async_test
    async def run() -> None:
        task = await own_task(subject)
        box = sandbox_for(subject, task)
        async with subject.build() as scaffold, session([BABBLE[says]]) as line, box:
            try:
                ended = await scaffold.run(task, box, line)
            except BudgetExceeded:
                return
            assert isinstance(ended, str), f"run() must say in a word why it ended, not {ended!r}"
            assert ended, "run() must say in a word why it ended"
            assert line.recorder.chunks, "the model must be asked at least once, through the session"

    run()


@pytest.mark.ale_agent
@async_test
async def test_a_spent_budget_ends_the_episode(subject: Subject) -> None:
    task = await own_task(subject)
    box = sandbox_for(subject, task)
    async with (
        subject.build() as scaffold,
        session([BABBLE["a call of a tool that there is not"]], max_calls=2) as line,
        box,
    ):
        with suppress(BudgetExceeded):
            ended = await scaffold.run(task, box, line)
            assert isinstance(ended, str), "where it handles BudgetExceeded itself, run() must say why it ended"
        assert line.calls <= 2, "no call beyond the budget"


@pytest.mark.ale_agent
@async_test
async def test_the_task_reaches_the_model_unchanged(subject: Subject) -> None:
    task = await own_task(subject)
    box = sandbox_for(subject, task)
    async with subject.build() as scaffold, session(["I am done."], max_calls=3) as line, box:
        with suppress(BudgetExceeded):
            await scaffold.run(task, box, line)
        (first, *_) = line.recorder.sequences
        told = "\n".join(m.content for m in first.messages)
        assert task.instruction in told, "the model must be told the task's instruction, unicode included"
        hidden = [] if task.tests is None else [task.tests.command, *task.tests.files.values()]
        assert not any(isinstance(text, str) and text and text in told for text in hidden), (
            "the model must not see the hidden tests"
        )


@pytest.mark.ale_agent
@pytest.mark.ale_sandbox
@async_test
async def test_commands_run_only_in_the_sandbox(subject: Subject) -> None:
    name = f"ale-kit-{os.getpid()}-was-here"
    task = await own_task(subject)
    box = FolderSandbox(task)
    calls = [await _command(subject, f"touch {name}"), "I am done."]
    async with subject.build() as scaffold, session(calls, max_calls=4) as line, box:
        with suppress(BudgetExceeded):
            await scaffold.run(task, box, line)
        assert (box.folder / name).exists(), (
            f"a command that the model asks for must run, in the sandbox's work folder; it ran {box.commands or 'none'}"
        )
        if not subject.over_http:
            assert any(name in command for command in box.commands), "commands must run through sandbox.exec"
        assert line.observations, "what a command answered must be told to session.observe(), for people and for replay"


@pytest.mark.ale_agent
@pytest.mark.ale_in_process
@async_test
async def test_an_invalid_call_is_marked_as_an_error(subject: Subject) -> None:
    tools = [name for name, parameters in await _tools(subject) if parameters.get("required")]
    if not tools:
        return  # no call can misfit
    misfit = f"<tool_call>\n{json.dumps({'name': tools[0], 'arguments': {}})}\n</tool_call>"
    task = await own_task(subject)
    box = sandbox_for(subject, task)
    calls = [misfit, "I am done."]
    async with subject.build() as scaffold, session(calls, max_calls=3) as line, box:
        with suppress(BudgetExceeded):
            await scaffold.run(task, box, line)
        assert line.recorder.chunks[0].error is not None, (
            "a call whose arguments do not fit must be marked with session.mark_error(): training leaves such turns out"
        )


@pytest.mark.ale_agent
@pytest.mark.ale_sandbox
@async_test
async def test_cancelling_an_agent_ends_its_command(subject: Subject) -> None:
    task = await own_task(subject)
    box = FolderSandbox(task)
    async with subject.build() as scaffold, session([await _command(subject, "sleep 60")]) as line, box:
        episode = asyncio.ensure_future(scaffold.run(task, box, line))
        for _ in range(200):
            if box.running:
                break
            await asyncio.sleep(0.05)
        assert box.running, "a command that the model asks for must run in the sandbox"
        assert await cancelled(episode, 0.0), "an agent must not end before its command does"
        assert not box.running, "cancelling the agent must end the command that it waits for"


@pytest.mark.ale_agent
@pytest.mark.ale_sandbox
@async_test
async def test_a_dead_sandbox_raises_a_sandbox_error(subject: Subject) -> None:
    task = await own_task(subject)
    box = FolderSandbox(task)
    async with subject.build() as scaffold, session([await _command(subject, "echo hi")]) as line, box:
        box.die()
        why = "an agent whose sandbox is dead"
        await fails_with(asyncio.wait_for(scaffold.run(task, box, line), 60), SandboxError, why=why)


@pytest.mark.ale_agent
@pytest.mark.ale_in_process
@async_test
async def test_a_failing_engine_raises_an_engine_error(subject: Subject) -> None:
    task = await own_task(subject)
    box = sandbox_for(subject, task)
    async with subject.build() as scaffold, session([EngineError("The engine is lost.")]) as line, box:
        why = "an agent whose engine fails"
        await fails_with(asyncio.wait_for(scaffold.run(task, box, line), 60), EngineError, why=why)


@pytest.mark.ale_agent
@async_test
async def test_cancelling_ends_the_agent_promptly(subject: Subject) -> None:
    for after_s in (0.0, 0.005, 0.05):
        task = await own_task(subject)
        box = sandbox_for(subject, task)
        babble = BABBLE["a call of a tool that there is not"]
        async with subject.build() as scaffold, session([babble], max_calls=10_000, max_context=1 << 20) as line, box:
            await cancelled(scaffold.run(task, box, line), after_s)


@pytest.mark.ale_agent
@async_test
async def test_episodes_run_side_by_side(subject: Subject) -> None:
    async with subject.build() as scaffold:
        found: list[str] = []
        pattern = await own_task(subject)

        async def one(i: int) -> None:
            task = pattern.model_copy(update={"id": f"kit-{i}", "instruction": f"Say the number {i}."})
            box = sandbox_for(subject, task)
            async with session([f"It is {i}."], max_calls=3) as line, box:
                with suppress(BudgetExceeded):
                    await scaffold.run(task, box, line)
                found.append("\n".join(m.content for m in line.recorder.sequences[0].messages))

        await asyncio.gather(*(one(i) for i in range(6)))
        for text in found:
            others = sum(f"Say the number {i}." in text for i in range(6))
            assert others == 1, "episodes side by side must not see each other's tasks"


def test_deterministic_tools_are_names(subject: Subject) -> None:
    tools: object = subject.build().deterministic_tools
    named = isinstance(tools, frozenset) and all(isinstance(tool, str) and tool for tool in tools)
    assert named, f"deterministic_tools must be a frozenset of tools' names, not {tools!r}"


async def _tools(subject: Subject) -> list[tuple[str, dict[str, object]]]:
    """The tools that the agent tells the model of."""
    task = await own_task(subject)
    box = sandbox_for(subject, task)
    scaffold = subject.build()
    async with scaffold, session(["I am done."], max_calls=1) as line, box:
        with suppress(BudgetExceeded):
            await scaffold.run(task, box, line)
        return [(tool.name, dict(tool.parameters)) for tool in line.recorder.sequences[0].tools]


async def _command(subject: Subject, command: str) -> str:
    """A well-formed call of a tool that takes a command. Skips where the agent has none."""
    for name, parameters in await _tools(subject):
        properties = parameters.get("properties")
        words = [word for word in ("command", "cmd", "script") if isinstance(properties, dict) and word in properties]
        if words:
            return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {words[0]: command}})}\n</tool_call>"
    pytest.skip("its agent has no tool with an argument 'command', 'cmd' or 'script' to ask for a command with")
