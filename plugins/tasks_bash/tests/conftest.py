"""A playground: tasks are really worked on in local sandboxes, with the tools of the iFlow agent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from ale.messages import Message
from ale.specs.driver import DriverContext
from ale.specs.sandbox import TESTS, Sandbox, SandboxProvider, SandboxSpec
from ale.specs.start import Responder
from ale.task import Task
from ale_bash import BashTasks

MAX_TURNS = 10
TESTS_FOLDER = "/tmp/ale-bash-tests"


@dataclass(frozen=True)
class Played:
    """What came of one episode: the conversation after the instruction, and whether the hidden test passed."""

    messages: tuple[Message, ...]
    passed: bool
    finished: bool

    @property
    def turns(self) -> int:
        """Calls made, `finish` included."""
        return sum(m.role == "assistant" for m in self.messages)

    @property
    def characters(self) -> int:
        """Characters of all calls and answers."""
        return sum(len(m.content) + sum(len(c.name) + len(c.arguments) for c in m.tool_calls) for m in self.messages)

    def text(self) -> str:
        """The conversation as a person reads it."""
        calls = (f"> {c.name} {c.arguments}" for m in self.messages for c in m.tool_calls)
        answers = (m.content for m in self.messages if m.role == "tool")
        return "\n".join(f"{call}\n{answer}" for call, answer in zip(calls, answers, strict=True))


class Playground:
    """Starts a fresh sandbox for each episode."""

    def __init__(self, provider: SandboxProvider, tools: Any) -> None:
        self._provider = provider
        self._tools = tools

    async def play(self, task: Task, responder: Responder) -> Played:
        """Let `responder` work on the task, then run the hidden test."""
        async with await self._start(task) as sandbox:
            box = self._tools.ToolBox(sandbox, 20.0, 4000)
            messages = [Message("user", task.instruction)]
            finished = False
            while not finished and len(messages) < 2 * MAX_TURNS:
                answer = await responder(messages, self._tools.TOOLS)
                assert answer is not None
                reply = answer.message
                (call,) = reply.tool_calls
                outcome = await box.run(call)
                messages += [reply, Message("tool", outcome.text, tool_call_id=call.id)]
                finished = call.name == "finish"
            return Played(tuple(messages[1:]), await self._passes(task, sandbox), finished)

    async def passes(self, task: Task, script: str = "true") -> bool:
        """Whether the hidden test passes after `script`."""
        async with await self._start(task) as sandbox:
            result = await sandbox.exec(script, timeout_s=30)
            assert result.exit_code == 0, f"{task.id}: {result.output}"
            return await self._passes(task, sandbox)

    async def _start(self, task: Task) -> Sandbox:
        files = {path: text.encode() for path, text in task.files.items()}
        return await self._provider.start_sandbox(SandboxSpec.model_validate({"files": files}))

    async def _passes(self, task: Task, sandbox: Sandbox) -> bool:
        files = {f"{TESTS_FOLDER}/{path}": text.encode() for path, text in task.tests.files.items()}
        await sandbox.upload(files, user=TESTS, mode=0o755)
        env = {"ALE_TESTS": TESTS_FOLDER}
        result = await sandbox.exec(task.tests.command, timeout_s=task.tests.timeout_s, env=env, user=TESTS)
        return result.exit_code == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def playground() -> AsyncIterator[Playground]:
    """The playground, with the default local provider."""
    ale_local = pytest.importorskip("ale_local", reason="the playground needs ale-plugin-local")
    tools = pytest.importorskip("ale_iflow.tools", reason="the playground needs ale-plugin-iflow")
    async with ale_local.LocalSandboxProvider(ale_local.LocalSandboxProvider.Config(), DriverContext()) as provider:
        yield Playground(provider, tools)


@pytest.fixture
def source() -> Callable[..., BashTasks]:
    """Makes a task source from settings."""

    def make(**settings: Any) -> BashTasks:
        return BashTasks(BashTasks.Config(**settings), DriverContext())

    return make
