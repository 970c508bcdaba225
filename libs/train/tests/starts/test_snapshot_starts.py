"""Rollouts that start from a snapshot are the same as those that start by replay, and they share each snapshot."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ale.rollout.scheduler import Rollouts
from ale.specs.events import hookimpl
from ale.store.run_store import RunStore
from ale_testing.fake_sandboxes import MemorySandbox

from .conftest import LIST, RL, WORK, Bench, essence

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("before", ["nothing", "upload", "title"])
@pytest.mark.parametrize("after", ["nothing", "upload"])
async def test_both_ways_give_the_same_rollout_from_every_start(bench: Bench, before: str, after: str) -> None:
    expert = await bench.expert()
    bench.hands.before, bench.hands.after = before, after
    for start in range(len(WORK) + 1):
        seen = []
        for fork in (False, True):
            bench.engine.texts = ["A title"] * (before == "title") * (2 if fork and start else 1)
            bench.provider.ran.clear()
            done = await bench.roll(expert, start, fork=fork)
            assert done.failure is None, done.failure
            seen.append((essence(done), bench.provider.ran[-1][1]))
        assert seen[0] == seen[1]
        ran = [command for box, command in bench.provider.ran if box == bench.provider.ran[-1][0]]
        assert ran == [LIST], "in the fork nothing is run but what the policy asks for"
    assert bench.events("start_states_given_up") == []


async def test_a_task_without_experts_and_a_start_at_the_beginning_need_no_state(bench: Bench) -> None:
    expert = await bench.expert()
    done = await bench.roll(expert, 0)
    assert (bench.provider.made, "state" in dict(done.timings)) == (0, False)
    done = await bench.roll(expert, 1)
    assert bench.provider.made == 1
    assert dict(done.timings)["state"] > 0


@pytest.mark.parametrize("lacking", ["snapshot", "outside"])
async def test_where_nothing_can_be_forked_the_expert_is_replayed(bench: Bench, lacking: str) -> None:
    """A run may select among several providers and scaffolds."""
    expert = await bench.expert()
    if lacking == "snapshot":
        bench.provider.sandbox_type = MemorySandbox  # type: ignore[misc]
    else:
        bench.hands.over_http = True  # type: ignore[misc]
    done = await bench.roll(expert, 3)
    assert (done.failure, bench.provider.made, "state" in dict(done.timings)) == (None, 0, False)
    assert bench.commands() == [*WORK[:3], LIST]


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_all_rollouts_of_a_step_need_each_state_once_and_one_walk(
    bench: Bench, concurrency: int, tmp_path: Path
) -> None:
    expert = await bench.expert()
    requests = [bench.request(expert, start, seed=i) for i, start in enumerate([2, 4, 4, 2, 3, 3, 4, 2])]
    bench.engine.texts = ["mine"] * len(requests)
    with RunStore.create(tmp_path) as store:
        done = await Rollouts(bench.episodes(concurrency=concurrency), store).run(requests, RL)
    assert [t.failure for t in done] == [None] * 8
    assert bench.provider.made == 3
    assert bench.commands() == WORK[:4], "the expert's commands are run once"
    (event,) = bench.events("start_states_made")
    assert (event["expert"], event["starts"]) == (expert.id, [2, 3, 4])


async def test_an_earlier_start_that_is_asked_for_later_takes_another_walk(bench: Bench) -> None:
    expert = await bench.expert()
    for start in (4, 2, 4, 2):
        assert (await bench.roll(expert, start)).failure is None
    assert [event["starts"] for event in bench.events("start_states_made")] == [[4], [2]]


async def test_what_is_asked_for_on_the_way_is_kept_by_the_same_walk(bench: Bench) -> None:
    bench.provider.stand.set()
    expert = await bench.expert(["put a 1", "stand", "put b 1"])
    bench.provider.stand.clear()
    first = asyncio.create_task(bench.roll(expert, 2))
    await bench.until_run("stand")
    later = [asyncio.create_task(bench.roll(expert, start)) for start in (3, 1)]
    await asyncio.sleep(0)
    bench.provider.stand.set()
    assert [done.failure for done in await asyncio.gather(first, *later)] == [None] * 3
    assert [event["starts"] for event in bench.events("start_states_made")] == [[2, 3], [1]], "1 was behind it already"


async def test_observers_see_the_walk_and_nothing_that_was_not_run(bench: Bench) -> None:
    heard: list[tuple[str, str]] = []

    class Watch:
        @hookimpl
        def ale_before_exec(self, episode_id: str, command: str) -> str | None:
            heard.append((episode_id, command))
            return "no" if command == "put b 2" else None

    bench.hooks.register("watch", Watch())
    expert = await bench.expert()
    heard.clear()
    done = await bench.roll(expert, 4)
    assert done.failure is None
    walk, fork = {episode: None for episode, _ in heard}
    assert walk.startswith("start-")
    assert [command for episode, command in heard if episode == walk] == WORK[:4]
    assert [command for episode, command in heard if episode == fork] == [LIST]
    assert "refused: no" in done.sequences[0].messages[5].content
