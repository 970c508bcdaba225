"""Snapshots with processes (capability `checkpoint`): what runs goes on where it is, and in all that starts from there."""

from __future__ import annotations

import asyncio
import os

import pytest

from ale.errors import ConfigError, PluginError, SandboxError
from ale.specs.sandbox import Resources, Sandbox
from ale.testing.scenario import fails_with, scenario
from ale.testing.subject import Subject
from ale.testing.test_sandbox import LOOP, spec, started
from ale.testing.test_sandbox_snapshots import fork

needs = pytest.mark.ale_needs
RUN = f"({LOOP}) >/dev/null 2>&1 &"


async def beats(box: Sandbox) -> list[int]:
    """What the loop has counted to, twice."""
    told = (await box.exec("cat beat; sleep 0.5; cat beat")).stdout.split()
    return [int(word) for word in told]


@needs("checkpoint")
@scenario
async def test_what_runs_goes_on_and_goes_on_from_there(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if "checkpoint" not in provider.capabilities:
            return  # narrowed by start(): this machine does not give it, and the provider says so
        await box.exec(RUN + " echo 1 > /tmp/file; echo 2 > /dev/shm/file")
        await asyncio.sleep(1)
        name = await box.snapshot(processes=True)
        first, second = await beats(box)
        assert second > first, "what runs must go on in the sandbox that a snapshot with processes is made of"
        await asyncio.sleep(1)
        async with fork(subject, provider, name) as copy:
            once, again = await beats(copy)
            assert again > once, "what ran must run in a sandbox that starts from a snapshot with processes"
            assert 5 < once < second + 10, (
                "it must go on from where it was then, neither from the beginning nor from now"
            )
            await copy.exec("rm /tmp/file; echo 3 > /dev/shm/file; echo new > new")
        # The loop goes on, so that the file that it is about to put in the other's place may be there.
        assert (await box.exec("cat /tmp/file /dev/shm/file; ls | grep -v beat.new")).output == "1\n2\nbeat\n", (
            "files of a sandbox from a snapshot with processes must be its own"
        )


@needs("checkpoint")
@scenario
async def test_commands_and_shells_do_not_notice(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if "checkpoint" not in provider.capabilities:
            return
        async with await box.open_shell() as shell:
            await shell.run("x=7; cd /tmp")
            running = asyncio.ensure_future(box.exec("echo begun; sleep 1.5; echo ended; exit 3"))
            in_shell = asyncio.ensure_future(shell.run("sleep 1; echo $x"))
            await asyncio.sleep(0.3)
            making = asyncio.ensure_future(box.snapshot(processes=True))
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


@needs("checkpoint")
@scenario
async def test_many_start_from_one_at_once_and_a_name_stays(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if "checkpoint" not in provider.capabilities:
            return
        await box.exec(RUN)
        name = await box.snapshot(f"kit-{os.getpid()}-runs", processes=True)
        unnamed = await box.snapshot(processes=True)
        assert {name, unnamed} <= set(await provider.snapshots()), "snapshots() must give those with processes too"
        boxes = await asyncio.gather(*(provider.start_sandbox(spec(subject, from_snapshot=name)) for _ in range(3)))
        await asyncio.gather(*(one.exec(f"echo {i} > mine") for i, one in enumerate(boxes)))
        for i, one in enumerate(boxes):
            assert (await one.exec("cat mine")).output == f"{i}\n", "those that start from one must be apart"
            first, second = await beats(one)
            assert second > first, "each must run what ran"
        async with fork(subject, provider, await boxes[0].snapshot(processes=True)) as grandchild:
            first, second = await beats(grandchild)
            assert second > first, "and so must what starts from one of them"
        await asyncio.gather(*(one.stop() for one in boxes))
    try:
        async with subject.build(run_id="other") as other:
            found = await other.snapshots()
            assert name in found, "a snapshot with a name must stay when its provider is closed"
            assert unnamed not in found, "a snapshot without a name must go with its provider"
            async with fork(subject, other, name) as copy:
                first, second = await beats(copy)
                assert second > first, "another provider must be able to start from it"
    finally:
        async with subject.build(run_id="last") as last:
            await last.remove_snapshot(name)
            assert name not in await last.snapshots()
            await fails_with(
                last.start_sandbox(spec(subject, from_snapshot=name)), ConfigError, why="a start from what was removed"
            )


@needs("checkpoint")
@scenario
async def test_what_a_snapshot_with_processes_cannot_give_is_refused(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if "checkpoint" not in provider.capabilities:
            return
        name = await box.snapshot(processes=True)
        async with fork(subject, provider, name) as copy:
            await fails_with(copy.reset(copy.spec), SandboxError, why="a reset of what began with processes")
        for other in ({"workdir": "/elsewhere"}, {"resources": Resources(memory_mib=99)}):
            wrong = spec(subject, from_snapshot=name, **other)
            await fails_with(
                provider.start_sandbox(wrong), ConfigError, why=f"a start with another {next(iter(other))}"
            )
        await box.stop()
        await fails_with(box.snapshot(processes=True), SandboxError, why="a snapshot after stop()")


@needs("snapshot")
@scenario
async def test_who_cannot_keep_processes_says_so(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if "checkpoint" not in provider.capabilities:
            await fails_with(box.snapshot(processes=True), PluginError, why="a snapshot with processes")
