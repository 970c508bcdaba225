"""These tests check `Snapshots`: sandboxes that start from one have the files of that moment and do not affect each
other, and a snapshot can be removed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ale.errors import AleError, ConfigError, SandboxError
from ale.specs.sandbox import TESTS, Sandbox, SandboxProvider
from ale.specs.sandbox_protocols import KeepsSnapshots, Measures, Snapshots
from ale_testing.async_tests import async_test, cancelled, fails_with
from ale_testing.plugin_under_test import Subject
from ale_testing.sandbox_setup import LOOP, WRITES, counts_on, spec, started

needs_snapshots = pytest.mark.ale_needs.with_args(Snapshots)


@asynccontextmanager
async def fork(subject: Subject, provider: SandboxProvider, name: str) -> AsyncIterator[Any]:
    """A sandbox that starts from a snapshot."""
    async with await provider.start_sandbox(spec(subject, from_snapshot=name)) as box:
        yield box


async def stdout_of(box: Sandbox, command: str, user: str = "agent") -> str:
    """What a command writes."""
    return (await box.exec(command, user=user)).stdout.decode("utf-8", "surrogateescape")


async def snapshots_named(provider: KeepsSnapshots, part: str) -> list[str]:
    """Snapshots with this in their names; on this machine others may come and go meanwhile."""
    return [name for name in await provider.snapshots() if part in name]


@needs_snapshots
@async_test
async def test_a_snapshot_restores_the_files(subject: Subject) -> None:
    async with subject.build() as provider:
        box = await provider.start_sandbox(spec(subject, files={"kept": b"1"}))
        await box.exec("echo 2 > more; rm -f gone")
        name = await box.snapshot()
        await box.exec("echo spoilt > kept")
        await box.stop()
        copies = await asyncio.gather(*(provider.start_sandbox(spec(subject, from_snapshot=name)) for _ in range(2)))
        for copy in copies:
            assert await copy.download("kept") == b"1", "a sandbox from a snapshot must have the files of that moment"
            assert await copy.download("more") == b"2\n", "a snapshot must hold what commands wrote"
        await copies[0].upload({"kept": b"mine"})
        assert await copies[1].download("kept") == b"1", "sandboxes from one snapshot must not share writes"


@needs_snapshots
@async_test
async def test_a_snapshot_keeps_owners_modes_and_links(subject: Subject) -> None:
    async with started(subject, files={"kept": b"1", "deep/er/file": b"2"}) as (provider, box):
        await box.exec(
            "printf '#!/bin/sh\\necho ran\\n' > run; chmod 755 run; ln -s deep/er/file link; ln -s /usr/bin/env out; "
            "mkdir empty; "
            "mkdir -m 700 private; echo h > ~/.in-home; echo t > /tmp/in-tmp; echo x > \"$(printf 'na\\351me')\""
        )
        look = (
            "./run; cat link ~/.in-home /tmp/in-tmp na*; readlink out; ls -ld run empty private link | cut -c 1-10; ls"
        )
        before = await stdout_of(box, look)
        name = await box.snapshot()
        async with fork(subject, provider, name) as copy:
            assert await stdout_of(copy, look) == before, (
                "files, modes and links must be as they were, in the home and /tmp too"
            )
            assert (await copy.exec("echo 3 >> deep/er/file; rm kept; echo n > new")).exit_code == 0, (
                "what is in a sandbox from a snapshot must belong to who it belonged to"
            )


@needs_snapshots
@async_test
async def test_a_snapshot_may_be_made_while_processes_run(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        running = asyncio.ensure_future(box.exec(f"({LOOP}) & sleep 60", timeout_s=60))
        await box.exec(WRITES)
        name = await box.snapshot()
        assert await counts_on(box), "what runs must go on after a snapshot"
        assert not running.done(), "a snapshot must not end a command"
        async with fork(subject, provider, name) as copy:
            counts = await stdout_of(copy, "cat beat; sleep 0.4; cat beat")
            assert len(counts.split()) == 2, "a snapshot must hold what was written until then"
            assert len(set(counts.split())) == 1, "processes must not be kept in a snapshot"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@needs_snapshots
@async_test
async def test_sandboxes_from_one_snapshot_are_independent(subject: Subject) -> None:
    async with started(subject, files={"a/b": b"1", "c": b"1"}) as (provider, box):
        name = await box.snapshot()
        boxes = await asyncio.gather(*(provider.start_sandbox(spec(subject, from_snapshot=name)) for _ in range(4)))
        await asyncio.gather(
            *(one.exec(f"echo {i} > a/b; rm c; mkdir c; echo {i} > c/d") for i, one in enumerate(boxes))
        )
        assert [await stdout_of(one, "cat a/b c/d") for one in boxes] == [f"{i}\n{i}\n" for i in range(4)], (
            "sandboxes from one snapshot must not share what they write"
        )
        assert await stdout_of(box, "cat a/b c") == "11", "nor must the sandbox that it was made of"
        async with fork(subject, provider, name) as late:
            assert await stdout_of(late, "cat a/b c") == "11", "a snapshot must stay as it is, whatever starts from it"
        async with fork(subject, provider, await boxes[1].snapshot()) as grandchild:
            assert await stdout_of(grandchild, "cat a/b c/d; ls") == "1\n1\na\nc\n", (
                "a snapshot of a fork must hold its whole state"
            )
        await asyncio.gather(*(one.stop() for one in boxes))


@needs_snapshots
@async_test
async def test_a_snapshot_name_is_replaced_while_its_sandboxes_keep_running(subject: Subject) -> None:
    wanted = f"kit-{os.getpid()}-again"
    async with started(subject, files={"state": b"old", "more": b"old"}) as (provider, box):
        name = await box.snapshot(wanted)
        async with fork(subject, provider, name) as before:
            await box.upload({"state": b"new"})
            assert await box.snapshot(wanted) == name, "the same name must give the same snapshot's name"
            async with fork(subject, provider, name) as after:
                assert await after.download("state") == b"new", (
                    "a second snapshot of a name must take the first one's place"
                )
            assert await stdout_of(before, "cat state more; echo > more; cat state") == "oldoldold", (
                "a sandbox that runs from a snapshot must go on when its name is taken over"
            )
        await provider.remove_snapshot(name)


@needs_snapshots
@async_test
async def test_named_snapshots_stay_until_they_are_removed_and_others_do_not(subject: Subject) -> None:
    async with started(subject, files={"state": b"kept"}) as (provider, box):
        named, unnamed = await box.snapshot(f"kit-{os.getpid()}-stays"), await box.snapshot()
        assert {named, unnamed} <= set(await provider.snapshots()), "snapshots() must give every snapshot there is"
    outside = subject.build(run_id="other")  # not started, as `ale sandbox` has it
    try:
        found = await outside.snapshots()
        assert named in found, "a snapshot with a name must stay when its provider is closed"
        assert unnamed not in found, "a snapshot without a name must go with its provider"
        async with subject.build(run_id="another") as another:
            async with fork(subject, another, named) as copy:
                assert await copy.download("state") == b"kept", "another provider must be able to start from it"
            await fails_with(
                another.start_sandbox(spec(subject, from_snapshot=unnamed)),
                ConfigError,
                why="a start from a snapshot that is gone",
            )
    finally:
        await outside.remove_snapshot(named)
    await outside.remove_snapshot(named)
    await outside.remove_snapshot("no-such-snapshot")
    assert named not in await outside.snapshots(), "remove_snapshot() must take it off the list"
    async with subject.build(run_id="last") as last:
        await fails_with(
            last.start_sandbox(spec(subject, from_snapshot=named)),
            ConfigError,
            why="a start from a snapshot that was removed",
        )


@needs_snapshots
@async_test
async def test_a_snapshot_in_use_outlives_its_removal_or_is_not_removed(subject: Subject) -> None:
    async with started(subject, files={"state": b"1"}) as (provider, box):
        name = await box.snapshot(f"kit-{os.getpid()}-used")
        async with fork(subject, provider, name) as copy:
            try:
                await provider.remove_snapshot(name)
            except SandboxError:
                assert name in await provider.snapshots(), "a snapshot whose removal is refused must stay"
            assert await stdout_of(copy, "cat state; echo 2 >> state; cat state") == "112\n", (
                "a sandbox must go on when the snapshot that it runs from is removed"
            )
        await provider.remove_snapshot(name)
        assert name not in await provider.snapshots(), "once nothing runs from it, a snapshot must be removed"


@needs_snapshots
@async_test
async def test_invalid_and_unknown_snapshot_names_are_refused(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        for wrong in ("../kit-up", "kit/a/b", "kit a b", "", "-kit-x", "x" * 200, "kit\nline"):
            if wrong:
                await fails_with(box.snapshot(wrong), AleError, why=f"a snapshot named {wrong!r}")
                assert await snapshots_named(provider, wrong) == [], "a refused snapshot must not be there"
            await fails_with(
                provider.start_sandbox(spec(subject, from_snapshot=wrong or "none")),
                AleError,
                why=f"a start from the snapshot {wrong!r}",
            )


@needs_snapshots
@async_test
async def test_a_cancelled_snapshot_leaves_nothing_and_the_sandbox_as_it_was(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        await box.exec("head -c 20000000 /dev/urandom > large")
        running = asyncio.ensure_future(box.exec(LOOP, timeout_s=60))
        for after_s in (0.0, 0.005, 0.03):
            name = f"kit-{os.getpid()}-cancelled-{after_s * 1000:g}"
            taking = asyncio.ensure_future(box.snapshot(name))
            if not await cancelled(taking, after_s):  # it was faster
                await provider.remove_snapshot(taking.result())
            assert await snapshots_named(provider, name) == [], "a cancelled snapshot must leave nothing"
        assert await counts_on(box), "what runs must go on after a cancelled snapshot"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@needs_snapshots
@async_test
async def test_a_stopped_sandbox_makes_no_snapshot(subject: Subject) -> None:
    async with started(subject) as (_, box):
        await box.stop()
        await fails_with(box.snapshot(), SandboxError, why="a snapshot after stop()")


@needs_snapshots
@pytest.mark.ale_needs("users")
@async_test
async def test_hidden_files_stay_hidden_in_sandboxes_from_a_snapshot(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if "users" not in provider.capabilities:
            return
        await box.upload({"/tmp/hidden/answer": b"answer"}, user=TESTS, mode=0o600)
        async with fork(subject, provider, await box.snapshot()) as copy:
            assert await stdout_of(copy, "cat /tmp/hidden/answer", TESTS) == "answer", (
                "a snapshot must keep the owners of files"
            )
            assert "answer" not in await stdout_of(copy, "cat /tmp/hidden/answer"), (
                "the agent must not read them in a fork either"
            )


@needs_snapshots
@pytest.mark.ale_needs("fork")
@async_test
async def test_forks_cost_no_copy(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if "fork" not in provider.capabilities:
            return  # narrowed by start(): this machine does not give it, and the provider says so
        await box.exec(
            "head -c 100000000 /dev/zero > large; i=0; while [ $i -lt 500 ]; do echo $i > f$i; i=$((i+1)); done"
        )
        name = await box.snapshot()
        boxes = await asyncio.gather(*(provider.start_sandbox(spec(subject, from_snapshot=name)) for _ in range(8)))
        held = [(await one.stats()).memory_bytes for one in boxes if isinstance(one, Measures)]
        assert [await stdout_of(one, "wc -c < large; cat f499") for one in boxes] == ["100000000\n499\n"] * 8, (
            "every fork must have the snapshot's files"
        )
        assert all(bytes_ is None or bytes_ < 80_000_000 for bytes_ in held), (
            "a fork must not hold a copy of the snapshot"
        )
        await asyncio.gather(*(one.stop() for one in boxes))
