"""These tests check snapshots with processes (`Checkpoints`): processes keep running in the sandbox, and also run in
every sandbox that starts from the snapshot."""

from __future__ import annotations

import asyncio
import os

import pytest

from ale.config.capabilities import has_now
from ale.errors import ConfigError, SandboxError
from ale.specs.sandbox import Resources
from ale.specs.sandbox_protocols import Checkpoints
from ale_testing.async_tests import async_test, fails_with
from ale_testing.plugin_under_test import Subject
from ale_testing.sandbox_setup import LOOP, counts_on, spec, started
from ale_testing.test_sandbox_snapshots import fork

needs = pytest.mark.ale_needs.with_args
RUN = f"({LOOP}) >/dev/null 2>&1 &"


@needs(Checkpoints)
@async_test
async def test_processes_continue_and_so_do_their_copies(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if not has_now(provider, Checkpoints):
            return  # narrowed by start(): this machine does not give it, and the provider says so
        await box.exec(RUN + " echo 1 > /tmp/file; echo 2 > /dev/shm/file")
        await box.exec('until [ "$(cat beat 2>/dev/null || echo 0)" -gt 5 ]; do sleep 0.1; done')
        name = await box.checkpoint()
        assert await counts_on(box), "what runs must go on in the sandbox that a snapshot with processes is made of"
        await box.kill_agent_processes()
        async with fork(subject, provider, name) as copy:
            assert int((await copy.exec("cat beat")).stdout) > 5, (
                "it must go on from where it was then, not from the beginning"
            )
            assert await counts_on(copy), "what ran must run in a sandbox that starts from a snapshot with processes"
            await copy.exec("rm /tmp/file; echo 3 > /dev/shm/file; echo new > new")
        # The loop may have been ended before it put its new file in the other's place.
        assert (await box.exec("cat /tmp/file /dev/shm/file; ls | grep -v beat.new")).output == "1\n2\nbeat\n", (
            "files of a sandbox from a snapshot with processes must be its own"
        )


@needs(Checkpoints)
@async_test
async def test_commands_and_shells_continue_during_a_checkpoint(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if not has_now(provider, Checkpoints):
            return
        async with await box.open_shell() as shell:
            await shell.run("x=7; cd /tmp")
            running = asyncio.ensure_future(box.exec("echo begun; sleep 1.5; echo ended; exit 3"))
            in_shell = asyncio.ensure_future(shell.run("sleep 1; echo $x"))
            await asyncio.sleep(0.3)
            making = asyncio.ensure_future(box.checkpoint())
            meanwhile = await asyncio.gather(*(box.exec(f"echo {i}") for i in range(5)))
            name = await making
            assert [done.output for done in meanwhile] == [f"{i}\n" for i in range(5)], "commands meanwhile must run"
            done = await running
            assert (done.exit_code, done.output) == (3, "begun\nended\n"), "a command under way must go on"
            assert ((await in_shell).output, (await shell.run("echo $x; pwd")).output) == ("7\n", "7\n/tmp\n"), (
                "a shell must go on with all that it knows"
            )
        async with fork(subject, provider, name) as copy, await copy.open_shell() as fresh:
            assert (await fresh.run("echo $x-; echo on")).output == "-\non\n", "shells are not handed over"


@needs(Checkpoints)
@async_test
async def test_many_sandboxes_start_from_one_checkpoint_and_a_named_one_stays(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if not has_now(provider, Checkpoints):
            return
        await box.exec(RUN)
        name = await box.checkpoint(f"kit-{os.getpid()}-runs")
        unnamed = await box.checkpoint()
        assert {name, unnamed} <= set(await provider.snapshots()), "snapshots() must give those with processes too"
        boxes = await asyncio.gather(*(provider.start_sandbox(spec(subject, from_snapshot=name)) for _ in range(3)))
        await asyncio.gather(*(one.exec(f"echo {i} > mine") for i, one in enumerate(boxes)))
        for i, one in enumerate(boxes):
            assert (await one.exec("cat mine")).output == f"{i}\n", "those that start from one must be apart"
            assert await counts_on(one), "each must run what ran"
        async with fork(subject, provider, await boxes[0].checkpoint()) as grandchild:
            assert await counts_on(grandchild), "and so must what starts from one of them"
        await asyncio.gather(*(one.stop() for one in boxes))
    try:
        async with subject.build(run_id="other") as other:
            found = await other.snapshots()
            assert name in found, "a snapshot with a name must stay when its provider is closed"
            assert unnamed not in found, "a snapshot without a name must go with its provider"
            async with fork(subject, other, name) as copy:
                assert await counts_on(copy), "another provider must be able to start from it"
    finally:
        async with subject.build(run_id="last") as last:
            await last.remove_snapshot(name)
            assert name not in await last.snapshots()
            await fails_with(
                last.start_sandbox(spec(subject, from_snapshot=name)), ConfigError, why="a start from what was removed"
            )


@needs(Checkpoints)
@async_test
async def test_requests_that_a_checkpoint_cannot_serve_are_refused(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if not has_now(provider, Checkpoints):
            return
        name = await box.checkpoint()
        async with fork(subject, provider, name) as copy:
            await fails_with(copy.reset(copy.spec), SandboxError, why="a reset of what began with processes")
        for other in ({"workdir": "/elsewhere"}, {"resources": Resources(memory_mib=99)}):
            wrong = spec(subject, from_snapshot=name, **other)
            await fails_with(
                provider.start_sandbox(wrong), ConfigError, why=f"a start with another {next(iter(other))}"
            )
        await box.stop()
        await fails_with(box.checkpoint(), SandboxError, why="a snapshot after stop()")
