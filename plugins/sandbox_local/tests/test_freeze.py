"""All processes of a sandbox are frozen while a snapshot is taken, and go on afterwards."""

from __future__ import annotations

import asyncio

import pytest

from ale_local import LocalSandbox
from ale_sandbox.host.tree_transfers import Transfer


async def test_what_the_agent_had_stopped_stays_so_and_the_rest_goes_on(box: LocalSandbox) -> None:
    await box.exec(
        'until_is() { until grep -q "(sleep) $2" /proc/$1/stat; do sleep 0.01; done; }; '
        "sleep 4022 & until_is $! S; sleep 4023 & until_is $! S; kill -STOP $!; until_is $! T; "
        "(while :; do echo >> beats; sleep 0.02; done) >/dev/null 2>&1 & until [ -e beats ]; do sleep 0.01; done"
    )
    # One that has just been let go has to get a processor before it sleeps again.
    states = "until ps -o s=,args= -C sleep | grep 402 | sort > s; ! grep -q '^[RD]' s; do sleep 0.01; done; cat s"
    assert (await box.exec(states)).stdout == b"S sleep 4022\nT sleep 4023\n"
    await box.snapshot()
    assert (await box.exec(states)).stdout == b"S sleep 4022\nT sleep 4023\n"
    assert await eventually_more(box, len(await box.download("beats")))


async def test_what_was_just_being_forked_goes_on_too(box: LocalSandbox) -> None:
    await box.exec("for i in 1 2 3; do (while :; do true | cat; done) >/dev/null 2>&1 & done")
    for _ in range(150):
        async with Transfer(box.channel) as frozen:
            await frozen.answer(frozen.ask(b"stand"))
    states = (await box.exec("sleep 0.2; ps -e -o s=,args=")).stdout.decode().splitlines()
    assert not [line for line in states if line.startswith("T")]


async def test_time_outs_wait_while_everything_stands_still(box: LocalSandbox) -> None:
    running = asyncio.ensure_future(box.exec("for i in 1 2 3 4 5; do sleep 0.15; done; echo done", timeout_s=7.2))
    await asyncio.sleep(0.2)
    async with Transfer(box.channel) as frozen:
        await frozen.answer(frozen.ask(b"stand"))
        await asyncio.sleep(7)
        assert (await box.exec("echo on")).stdout == b"on\n", "what is asked for meanwhile runs"
    done = await running
    assert (done.exit_code, done.stdout) == (0, b"done\n")


@pytest.mark.slow
async def test_a_sandbox_that_is_forgotten_while_it_stands_still_goes_on(box: LocalSandbox) -> None:
    await box.exec(
        "(while :; do echo >> beats; sleep 0.02; done) >/dev/null 2>&1 & until [ -e beats ]; do sleep 0.01; done"
    )
    async with Transfer(box.channel) as frozen:
        await frozen.answer(frozen.ask(b"stand"))
        before = len(await box.download("beats"))
        await asyncio.sleep(0.3)
        assert len(await box.download("beats")) == before
        assert await eventually_more(box, before), "after ten seconds at most"


async def eventually_more(box: LocalSandbox, than: int) -> bool:
    """Whether the file `beats` grows."""
    for _ in range(240):
        await asyncio.sleep(0.25)
        if len(await box.download("beats")) > than:
            return True
    return False
