"""Of the states that are kept for later rollouts the unused ones are removed, and those in use stay."""

from __future__ import annotations

import asyncio

import pytest

from ale.rollout.sandbox_pool.slots import Slots
from ale.specs.sandbox import SandboxSpec
from ale_train.starts import ExpertStates

from .conftest import Bench

pytestmark = pytest.mark.usefixtures("quiet")


async def test_of_many_states_those_that_were_used_longest_ago_are_removed(bench: Bench) -> None:
    expert = await bench.expert()
    async with ExpertStates(most=2) as states:
        bench.states = states
        for start in (1, 2, 1, 3):
            await bench.roll(expert, start)
        assert sorted(bench.provider.kept) == ["s1", "s3"], "2 was used longest ago"
        await bench.roll(expert, 2)
        assert bench.provider.made == 4
        assert len(bench.provider.kept) == 2


async def test_a_state_that_is_lent_while_another_is_removed_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    expert = await bench.expert()
    for start in (1, 2, 3):
        await bench.roll(expert, start)
    states, lent, removing = bench.states, asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(states, "_most", 1)
    remove = bench.provider.remove_snapshot

    async def slowly(name: str) -> None:
        removing.set()
        await lent.wait()
        await remove(name)

    monkeypatch.setattr(bench.provider, "remove_snapshot", slowly)
    making_room = asyncio.create_task(states._make_room())
    await removing.wait()
    state = next(state for state in states._kept if state.start == 2)
    state.users += 1
    lent.set()
    await making_room
    state.users -= 1
    assert state in states._kept
    assert sorted(bench.provider.kept) == ["s2"]


async def test_forks_that_start_at_once_are_not_kept_to_be_used_again(bench: Bench) -> None:
    expert = await bench.expert()
    assert (await bench.roll(expert, 2)).failure is None
    assert bench.provider.ran[-1][0].startswith("box-")
    bench.provider.capabilities |= {"fork"}  # type: ignore[misc]
    assert (await bench.roll(expert, 2)).failure is None
    assert bench.provider.ran[-1][0].startswith("ale-fork-")
    slots = Slots(None, 1, lambda slot: None)
    for name in (None, "ale-fork-1"):
        slots.kind_of(SandboxSpec(id=name, from_snapshot=f"of {name}"))
    assert [kind.spec.from_snapshot for kind in slots.kinds.values()] == ["of None"], "none is kept warm"
