"""A sandbox that is watched: every way to run a command is asked about and told of, and all else goes on to the
sandbox."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from ale.errors import SandboxError
from ale.registry.hooks import Hooks
from ale.rollout.sandbox_pool.lease import LeasedSandbox
from ale.rollout.sandbox_wrappers import ForwardingSandbox, ObservedSandbox
from ale.specs.events import ExecBy, hookimpl
from ale.specs.sandbox import AGENT, ExecResult, Sandbox, SandboxSpec
from ale.specs.sandbox_protocols import SANDBOX_PROTOCOLS, Output, Resets, Shell, Shells
from ale.task import Task, TaskTests
from ale_testing.fake_sandboxes import MemoryProvider, MemorySandbox

TASK = Task(id="t", instruction="Do it.", tests=TaskTests(command="true"))


class Box(MemorySandbox):
    """Streams and shells say what they were asked to run; `wait` waits for ever."""

    async def exec_stream(self, command: str, **more: Any) -> AsyncGenerator[Output | ExecResult, None]:
        self.check()
        yield Output("stdout", command.encode())
        if command == "wait":
            await asyncio.Event().wait()
        yield ExecResult(3, b"", b"", 0.1)

    async def open_shell(self, **more: Any) -> Shell:
        self.check()
        return BoxShell(self)


class FileBox(MemorySandbox):
    """Copies trees, and nothing else of what `Box` can do."""

    async def upload_tree(self, source: Path, target: str, *, user: str = AGENT) -> None:
        self.check()

    async def download_tree(self, source: str, target: Path, *, max_bytes: int = 1 << 32) -> None:
        self.check()


class BoxShell(Shell):
    """A shell of such a box."""

    def __init__(self, box: Box) -> None:
        self.box, self.closed = box, False

    async def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = 1 << 20) -> ExecResult:
        return await self.box.exec(command)

    async def close(self) -> None:
        self.closed = True


class Watcher:
    """Refuses what has `rm` in it, and writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, Any]] = []

    @hookimpl
    def ale_before_exec(self, command: str, stdin: bytes) -> str | None:
        return "not that" if "rm" in command else None

    @hookimpl
    def ale_exec_started(self, command: str, stdin: bytes) -> None:
        self.calls.append(("started", command, stdin))

    @hookimpl
    def ale_exec_finished(self, command: str, result: ExecResult | None, error: str | None) -> None:
        self.calls.append(("finished", command, error if result is None else result.exit_code))


def watched(by: ExecBy = "agent") -> tuple[ObservedSandbox, Box, Watcher]:
    """A box, the sandbox that an agent gets instead of it, and who watches."""
    provider, watcher = MemoryProvider(), Watcher()
    box = Box(provider, 1, SandboxSpec())
    provider.alive.add(box)
    return ObservedSandbox(box, "e", TASK, by, Hooks([("watcher", watcher)])), box, watcher


async def everyway(sandbox: Sandbox, command: str) -> list[ExecResult]:
    """Run a command in every way that there is; the results."""
    streamed = [item async for item in sandbox.exec_stream(command)]
    assert isinstance(streamed[-1], ExecResult)
    said = b"".join(item.data for item in streamed[:-1] if isinstance(item, Output))
    async with await sandbox.open_shell() as shell:
        return [
            await sandbox.exec(command),
            ExecResult(streamed[-1].exit_code, said, b"", 0.0),
            await shell.run(command),
        ]


async def test_what_is_refused_is_refused_whichever_way_it_is_run() -> None:
    sandbox, _, watcher = watched()
    for result in await everyway(sandbox, "rm -rf /"):
        assert (result.exit_code, result.output) == (126, "refused: not that\n")
    assert watcher.calls == [("finished", "rm -rf /", 126)] * 3, "it is told of, and never started"


async def test_what_is_run_is_told_of_with_its_result_whichever_way_it_is_run() -> None:
    sandbox, _, watcher = watched()
    assert [result.exit_code for result in await everyway(sandbox, "echo")] == [0, 3, 0]
    ends = [("finished", "echo", code) for code in (3, 0, 0)]
    assert watcher.calls == [event for end in ends for event in (("started", "echo", b""), end)]
    sandbox, _, _ = watched(by="reward")
    assert [result.exit_code for result in await everyway(sandbox, "rm")] == [0, 3, 0], "only the agent is asked about"


async def test_a_stream_whose_reader_leaves_is_told_of_as_that() -> None:
    sandbox, _, watcher = watched()
    async with aclosing(sandbox.exec_stream("wait", stdin=b"in")) as items:
        assert await anext(items) == Output("stdout", b"wait")
        assert watcher.calls == [("started", "wait", b"in")]
    assert watcher.calls[1:] == [("finished", "wait", "its reader left")]


async def test_what_is_cancelled_or_dies_is_told_of_as_that() -> None:
    sandbox, box, watcher = watched()
    async with await sandbox.open_shell() as shell:
        for call in (shell.run("wait"), everyway(sandbox, "wait")):
            task = asyncio.ensure_future(call)
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        box.dead = True
        for call in (shell.run("true"), everyway(sandbox, "true")):
            with pytest.raises(SandboxError):
                await call
    ends = [what for kind, _, what in watcher.calls if kind == "finished"]
    assert [end.partition(":")[0] for end in ends] == ["CancelledError"] * 2 + ["SandboxError"] * 2
    assert "The sandbox box-1 is gone" in ends[-1]


async def test_everything_that_a_sandbox_can_do_reaches_the_one_inside() -> None:
    sandbox, box, _ = watched()
    contract = {
        name
        for name, value in vars(Sandbox).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    }
    kept = {name for name in contract if getattr(ObservedSandbox, name) is getattr(Sandbox, name)}
    assert kept == set(), "what is not passed on would be the contract's default"
    assert isinstance(sandbox, Resets)
    assert isinstance(sandbox, Shells)
    fresh = SandboxSpec(env={"A": "b"})
    await sandbox.reset(fresh)
    assert (box.spec, sandbox.spec) == (fresh, fresh)
    shell = await sandbox.open_shell()
    await shell.close()
    assert shell._inner.closed  # type: ignore[attr-defined]


@pytest.mark.parametrize("able", [Box, MemorySandbox, FileBox])
async def test_a_sandbox_around_another_has_the_protocols_of_that_one_and_no_others(able: type[MemorySandbox]) -> None:
    box = able(MemoryProvider(), 1, SandboxSpec())
    watcher = ObservedSandbox(box, "e", TASK, "agent", Hooks([]))
    for around in (watcher, ForwardingSandbox(watcher), LeasedSandbox(box, lambda busy: None)):
        has = {protocol for protocol in SANDBOX_PROTOCOLS if isinstance(around, protocol)}
        assert has == {protocol for protocol in SANDBOX_PROTOCOLS if isinstance(box, protocol)}
        for protocol in SANDBOX_PROTOCOLS:  # as newer Pythons look: what `__getattr__` would make up does not count
            names = [name for name in vars(protocol) if not name.startswith("_")]
            found = [inspect.getattr_static(around, name, None) is not None for name in names]
            assert all(found) == (protocol in has)
