"""These tests check that a sandbox ends in time and leaves nothing, and that providers list and remove theirs."""

from __future__ import annotations

import asyncio
import os
import time

from ale.config.capabilities import NETWORKS, has_now
from ale.errors import AleError, ConfigError, PluginError, SandboxError
from ale.specs.sandbox import Resources, SandboxSpec
from ale.specs.sandbox_protocols import Snapshots
from ale_testing.async_tests import async_test, fails_with, patience_s
from ale_testing.plugin_under_test import Subject
from ale_testing.sandbox_setup import (
    needs,
    network_spec,
    spec,
    started,
)


@async_test
async def test_stop_may_be_called_twice_and_at_any_time(subject: Subject) -> None:
    async with subject.build() as provider:
        box = await provider.start_sandbox(spec(subject))
        running = asyncio.ensure_future(box.exec("sleep 60"))
        await asyncio.sleep(0.1)
        await asyncio.gather(box.stop(), box.stop())
        await fails_with(asyncio.wait_for(running, 20), SandboxError, why="a command whose sandbox is stopped")
        await box.stop()
        for call in (box.exec("true"), box.upload({"a": b""}), box.download("a"), box.kill_agent_processes()):
            await fails_with(call, SandboxError, why="a call after stop()")


@async_test
async def test_a_dead_sandbox_never_looks_like_a_failed_command(subject: Subject) -> None:
    async with subject.build() as provider, subject.build(run_id="other") as other:
        box = await provider.start_sandbox(spec(subject))
        running = asyncio.ensure_future(box.exec("sleep 60"))
        await asyncio.sleep(0.1)
        await other.remove(box.id)  # as an operator would, from outside
        await fails_with(
            asyncio.wait_for(running, 30), SandboxError, why="a command whose sandbox was removed under it"
        )
        await fails_with(box.exec("true"), SandboxError, why="a command in a sandbox that was removed")


@needs("isolated")  # elsewhere it could kill whoever asks
@async_test
async def test_an_agent_that_kills_processes_gets_true_results(subject: Subject) -> None:
    async with started(subject) as (_, box):
        for command in ("kill -9 $PPID", "kill -9 1"):
            try:
                await asyncio.wait_for(box.exec(command, timeout_s=5), 20)
                again = await asyncio.wait_for(box.exec("echo alive", timeout_s=5), 20)
            except SandboxError:
                return  # dead, and it says so
            assert again.stdout == b"alive\n", f"after {command!r} the sandbox must either work or raise SandboxError"


@async_test
async def test_a_provider_lists_and_removes_its_sandboxes(subject: Subject) -> None:
    async with subject.build() as provider:
        box = await provider.start_sandbox(spec(subject, id=f"ale-kit-{os.getpid()}", labels={"task": "t-1"}))
        assert box.id == f"ale-kit-{os.getpid()}", "a sandbox must have the id that the spec asks for"
        (line,) = [i for i in await provider.list() if i.id == box.id]
        assert line.labels.get("task") == "t-1", "list() must give the labels of the spec"
        assert line.alive, "list() must say that a running sandbox is alive"
        again = await provider.start_sandbox(spec(subject, id=box.id, labels={"task": "t-1"}))
        await box.upload({"mine": b"1"})
        assert await again.download("mine") == b"1", "starting the same spec again must give the sandbox that is there"
        other = provider.start_sandbox(spec(subject, id=box.id, env={"OTHER": "1"}))
        await fails_with(other, AleError, why="starting another spec under an id that is there")
        assert (await box.exec("echo on")).stdout == b"on\n", "a refused second start must not harm the first sandbox"
        async with subject.build(run_id="another") as beside:
            foreign = beside.start_sandbox(spec(subject, id=box.id, labels={"task": "t-1"}))
            await fails_with(foreign, AleError, why="starting an id that another provider has")
        await provider.remove(box.id)
        await provider.remove(box.id)
        await provider.remove("no-such-sandbox")
        assert box.id not in {i.id for i in await provider.list()}, "remove() must take it off the list"


@async_test
async def test_each_sandbox_has_an_id_and_files_of_its_own(subject: Subject) -> None:
    async with subject.build() as provider:
        boxes = await asyncio.gather(*(provider.start_sandbox(spec(subject)) for _ in range(4)))
        assert len({box.id for box in boxes}) == 4, "every sandbox must have an id of its own"
        await asyncio.gather(*(box.upload({"mine": str(i).encode()}) for i, box in enumerate(boxes)))
        found = await asyncio.gather(*(box.download("mine") for box in boxes))
        assert found == [b"0", b"1", b"2", b"3"], "each sandbox must have files of its own"


@async_test
async def test_closing_the_provider_stops_everything(subject: Subject) -> None:
    provider = subject.build()
    async with provider:
        boxes = [await provider.start_sandbox(spec(subject)) for _ in range(2)]
        running = asyncio.ensure_future(boxes[0].exec("sleep 60"))
        await asyncio.sleep(0.1)
    await fails_with(asyncio.wait_for(running, patience_s()), SandboxError, why="a command whose provider is closed")
    await fails_with(boxes[1].exec("true"), SandboxError, why="a command after the provider's close()")
    async with subject.build() as fresh:
        left = {i.id for i in await fresh.list()} & {box.id for box in boxes}
        assert not left, f"close() must stop every sandbox; left are {', '.join(left)}"


@async_test
async def test_a_cancelled_start_leaves_no_sandbox(subject: Subject) -> None:
    async with subject.build() as provider:
        for i, after_s in enumerate((0.0, 0.002, 0.01, 0.05)):
            name = f"ale-kit-cancel-{os.getpid()}-{i}"
            task = asyncio.ensure_future(provider.start_sandbox(spec(subject, id=name)))
            await asyncio.sleep(after_s)
            task.cancel()
            await asyncio.wait([task], timeout=60)
            assert task.done(), "a cancelled start_sandbox must end"
            if not task.cancelled() and task.exception() is None:
                await task.result().stop()
            for _ in range(50):
                if name not in {entry.id for entry in await provider.list()}:
                    break
                await asyncio.sleep(0.1)
            else:
                raise AssertionError(f"start_sandbox, cancelled after {after_s} s, left the sandbox {name} behind")


@async_test
async def test_a_lifetime_ends_the_sandbox_or_is_refused(subject: Subject) -> None:
    async with subject.build() as provider:
        try:
            box = await provider.start_sandbox(spec(subject, lifetime_s=1.0))
        except (ConfigError, PluginError):
            return
        until = time.monotonic() + patience_s()
        while time.monotonic() < until:
            try:
                await box.exec("true")
            except SandboxError:
                break
            await asyncio.sleep(0.2)
        else:
            raise AssertionError(
                f"a sandbox with lifetime_s=1 must be gone by then; it still runs after {patience_s():g} s"
            )
        await box.stop()
        assert box.id not in {i.id for i in await provider.list()}, (
            "list() must not name a sandbox whose lifetime is over"
        )


@async_test
async def test_an_idle_sandbox_ends_and_a_busy_one_does_not_or_it_is_refused(subject: Subject) -> None:
    async with subject.build() as provider:
        try:
            box = await provider.start_sandbox(spec(subject, idle_s=3.0))  # a busy machine may take some for a call
        except (ConfigError, PluginError):
            return
        assert (await box.exec("sleep 4; echo on")).stdout == b"on\n", "a sandbox in which a command runs is not idle"
        for _ in range(4):
            await asyncio.sleep(0.9)
            assert (await box.exec("echo on")).stdout == b"on\n", "each call must put the end off by idle_s"
        until = time.monotonic() + patience_s()
        while time.monotonic() < until:
            await asyncio.sleep(0.2)
            if box.id not in {i.id for i in await provider.list()}:
                break
        else:
            raise AssertionError(
                f"a sandbox with idle_s=3 must be gone by then; it is still there after {patience_s():g} s"
            )
        await fails_with(box.exec("true"), SandboxError, why="a command in a sandbox that was idle for too long")


@async_test
async def test_unsupported_requests_are_refused_and_not_ignored(subject: Subject) -> None:
    async with subject.build() as provider:
        wishes: list[tuple[str, SandboxSpec]] = [
            (mode, network_spec(mode))
            for mode, capability in NETWORKS.items()
            if capability not in provider.capabilities
        ]
        if "limits" not in provider.capabilities:
            wishes.append(("resources.memory_mib", spec(subject, resources=Resources(memory_mib=64))))
        if not has_now(provider, Snapshots):
            wishes.append(("from_snapshot", spec(subject, from_snapshot="no-such-snapshot")))
        if "images" not in provider.capabilities:
            wishes.append(("image", spec(subject, image="no-such-image:1")))
        for what, wish in wishes:
            error = await fails_with(
                provider.start_sandbox(wish),
                ConfigError,
                PluginError,
                SandboxError,
                why=f"a spec with {what}, which the provider does not claim to give",
            )
            assert str(error).strip(), "a refusal must say why"
