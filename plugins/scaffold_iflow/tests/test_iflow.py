"""The control loop, driven by a list of replies against a real sandbox."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from ale.messages import Message, ToolCall
from ale.registry.hooks import Hooks
from ale.session.session import RecordedSession, Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import Sampling
from ale.specs.sandbox import Sandbox, SandboxSpec
from ale.specs.start import Reply
from ale.task import Task, TaskTests
from ale_iflow import IFlow
from ale_local import LocalSandboxProvider

TASK = Task(id="t", instruction="Do it.", tests=TaskTests(command="true"))


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    context = DriverContext()
    async with (
        LocalSandboxProvider(LocalSandboxProvider.Config(isolation="none"), context) as provider,
        await provider.start_sandbox(SandboxSpec(network="full", files={"a.txt": b"pear\n"})) as box,
    ):
        yield box


def call(name: str, **arguments: object) -> Message:
    return Message("assistant", "", (ToolCall("c", name, json.dumps(arguments)),))


async def play(sandbox: Sandbox, *replies: Message, **config: object) -> tuple[str, RecordedSession]:
    script = iter(replies)

    async def respond(messages: object, tools: object) -> Reply:
        return Reply(next(script))

    endpoint = Sessions(byte_tokenizer(), None, Hooks())  # type: ignore[arg-type]
    session = endpoint.open("s", Sampling(), max_calls=20, max_context=9999, responder=respond)
    scaffold = IFlow(IFlow.Config(**config), DriverContext())  # type: ignore[arg-type]
    return await scaffold.run(TASK, sandbox, session), session


def errors(session: RecordedSession) -> list[str | None]:
    return [c.error.kind if c.error else None for c in session.recorder.chunks]


async def test_tools_act_on_the_sandbox_and_finish_ends_the_episode(sandbox: Sandbox) -> None:
    ended, session = await play(
        sandbox,
        call("shell", command="tr a-z A-Z < a.txt"),
        call("write_file", path="sub/b.txt", content="é 1"),
        call("read_file", path="sub/b.txt"),
        call("finish"),
    )
    assert ended == "finish"
    assert [o.text for o in session.observations] == ["PEAR", "written", "é 1", "done"]
    assert errors(session) == [None] * 4
    assert await sandbox.download("sub/b.txt") == "é 1".encode()


async def test_a_reply_without_a_call_ends_the_episode(sandbox: Sandbox) -> None:
    ended, session = await play(sandbox, Message("assistant", "All is well."))
    assert ended == "answer"
    assert not session.observations


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (call("fly"), "There is no tool 'fly'; the tools are shell, read_file, write_file, finish."),
        (call("shell"), "shell needs 'command' as a text."),
        (call("shell", command=3), "shell needs 'command' as a text."),
        (call("shell", command="ls", cwd="/"), "shell takes no 'cwd'; it takes command."),
        (Message("assistant", "", (ToolCall("c", "shell", "[1]"),)), "must be a JSON object"),
    ],
)
async def test_an_illegal_call_is_answered_with_a_sentence_and_recorded(
    sandbox: Sandbox, wrong: Message, sentence: str
) -> None:
    ended, session = await play(sandbox, wrong, call("finish"))
    assert ended == "finish", "the episode goes on after an illegal call"
    assert sentence in session.observations[0].text
    assert errors(session) == ["illegal_call", None]


async def test_failed_executions_are_told_apart_from_answers(sandbox: Sandbox) -> None:
    _, session = await play(
        sandbox,
        call("shell", command="cat nothing"),
        call("shell", command="grep -c zzz a.txt"),
        call("shell", command="sleep 90"),
        call("read_file", path="nothing"),
        call("finish"),
        command_timeout_s=3,  # enough for the others on a busy machine
    )
    assert errors(session) == ["execution_failed", None, "execution_failed", "execution_failed", None]
    assert session.observations[1].text == "0\n[exit code 1]"
    assert session.observations[2].text == "[stopped after 3 s]"


async def test_long_output_loses_its_middle_and_turns_are_limited(sandbox: Sandbox) -> None:
    ended, session = await play(sandbox, *[call("shell", command="seq 1 1000")] * 2, max_turns=2, max_output_chars=100)
    assert ended == "max_turns"
    assert len(session.observations[0].text) < 150
    assert "characters cut" in session.observations[0].text
