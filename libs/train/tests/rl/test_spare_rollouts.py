"""When a spare rollout begins, and which of the two becomes the group's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ale.rollout.episode import StageInfo
from ale.specs.algorithm import RolloutRequest
from ale.task import Task, TaskTests
from ale.trajectory import Score, Trajectory
from ale_train.rl import spare_rollouts
from ale_train.rl.spare_rollouts import SPARE_SEED, SpareRollouts

STAGE = StageInfo("rl", 1, "train", 1.0)
TASK = Task(id="t", instruction="", tests=TaskTests(command="true"))


def trajectory(seed: int, seconds: float) -> Trajectory:
    return Trajectory(
        f"t{seed}", "t", "train", "rl", 1, "g", seed, 0, (), (), reward=Score(1.0, True), seconds=seconds
    )  # fmt: skip


class Scene:
    """Rollouts that end when the test says so, on a clock of its own."""

    def __init__(self, most: int, size: int) -> None:
        self.now = 0.0
        self.ends: dict[int, asyncio.Future[Trajectory | None]] = {}
        self.rejected: list[tuple[str, str]] = []
        store = SimpleNamespace(
            resumed=False,
            change=lambda *changes: self.rejected.extend((id, why) for _, rows in changes for why, id in rows),
        )
        episodes = SimpleNamespace(config=SimpleNamespace(max_resamples=0), ended={})
        self.rollouts: Any = SimpleNamespace(run=self.run, running={}, store=store, episodes=episodes, judge=None)
        self.spares = SpareRollouts(self.rollouts, most, lambda: self.now)
        self.requests = [RolloutRequest(TASK, "g", seed) for seed in range(size)]

    async def run(self, requests: Sequence[RolloutRequest], stage: StageInfo) -> list[Trajectory]:
        (request,) = requests
        task, future = asyncio.current_task(), asyncio.get_running_loop().create_future()
        self.ends[request.seed] = future
        self.rollouts.running[task] = request
        try:
            made = await future
        finally:
            del self.rollouts.running[task]
        return [] if made is None else [made]

    async def end(self, seed: int, seconds: float | None) -> None:
        self.ends[seed].set_result(None if seconds is None else trajectory(seed, seconds))
        await asyncio.sleep(0.03)

    def spare_of(self, seed: int) -> bool:
        return seed + SPARE_SEED in self.ends


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_rollouts, "LOOK_S", 0.005)


async def test_a_spare_begins_where_tools_take_three_times_the_median_of_half_of_the_group() -> None:
    scene = Scene(most=2, size=4)
    made = asyncio.create_task(scene.spares.run(scene.requests, STAGE))
    await asyncio.sleep(0.03)
    scene.now = 100.0
    await scene.end(0, 10.0)
    assert not any(map(scene.spare_of, range(4))), "one of four has finished"
    scene.now = 29.0
    await scene.end(1, 10.0)
    assert not any(map(scene.spare_of, range(4))), "29 s are not yet three times 10 s"
    scene.now = 31.0
    await asyncio.sleep(0.03)
    assert [scene.spare_of(seed) for seed in range(4)] == [False, False, True, True]
    await scene.end(2, 35.0)
    await scene.end(3 + SPARE_SEED, 2.0)
    await scene.end(2 + SPARE_SEED, 2.0)
    await scene.end(3, None)
    async with asyncio.timeout(60):
        assert [t.seed for t in await made] == [0, 1, 2, 3 + SPARE_SEED]
    assert scene.spares.metrics()["spares"] == 2.0


async def test_a_rollout_that_samples_long_gets_none() -> None:
    scene = Scene(most=2, size=2)
    made = asyncio.create_task(scene.spares.run(scene.requests, STAGE))
    await asyncio.sleep(0.03)
    (slow,) = (task for task, request in scene.rollouts.running.items() if request.seed == 1)
    session: Any = SimpleNamespace(opened_by=slow)
    with scene.spares.sampling(session), scene.spares.sampling(session):
        scene.now = 1000.0
        await scene.end(0, 10.0)
        assert not scene.spare_of(1)
    scene.now = 1029.0
    await asyncio.sleep(0.03)
    assert not scene.spare_of(1), "what it sampled does not count afterwards either"
    scene.now = 1031.0
    await asyncio.sleep(0.03)
    assert scene.spare_of(1)
    made.cancel()
    with pytest.raises(asyncio.CancelledError):
        await made
    assert scene.rollouts.running == {}, "a group that is cancelled leaves none behind"


async def test_a_first_answer_that_takes_long_is_no_slow_tool() -> None:
    """Its request may be at the engine before the group is looked at for the first time, and others need no tools."""
    scene = Scene(most=2, size=2)
    made = asyncio.create_task(scene.spares.run(scene.requests, STAGE))
    for _ in range(3):
        await asyncio.sleep(0)
    (slow,) = (task for task, request in scene.rollouts.running.items() if request.seed == 1)
    session: Any = SimpleNamespace(opened_by=slow)
    with scene.spares.sampling(session):
        scene.now = 1000.0
        await scene.end(0, 0.0)
    scene.now = 1004.0
    await asyncio.sleep(0.03)
    assert not scene.spare_of(1), "four seconds are not slow, whatever the others took"
    await scene.end(1, 1004.0)
    assert len(await made) == 2


async def test_a_rollout_that_was_given_up_gets_spares_as_long_as_there_are_some() -> None:
    scene = Scene(most=2, size=2)
    made = asyncio.create_task(scene.spares.run(scene.requests, STAGE))
    await asyncio.sleep(0.03)
    await scene.end(0, None)
    await scene.end(SPARE_SEED, None)
    await scene.end(2 * SPARE_SEED, None)
    await scene.end(1, None)
    async with asyncio.timeout(60):
        assert await made == [], "the fourth failure is final"
    assert scene.spares.metrics() == {"spares": 2.0}


async def test_of_two_that_end_at_once_one_is_rejected() -> None:
    scene = Scene(most=1, size=2)
    made = asyncio.create_task(scene.spares.run(scene.requests, STAGE))
    await asyncio.sleep(0.03)
    scene.now = 50.0
    await scene.end(0, 10.0)
    assert scene.spare_of(1)
    scene.ends[1].set_result(trajectory(1, 50.0))
    await scene.end(1 + SPARE_SEED, 1.0)
    async with asyncio.timeout(60):
        assert [t.seed for t in await made] == [0, 1]
    assert scene.rejected == [(f"t{1 + SPARE_SEED}", "spare")]


async def test_without_spares_groups_are_made_whole() -> None:
    scene = Scene(most=0, size=2)
    asked: list[int] = []

    async def run(requests: Sequence[RolloutRequest], stage: StageInfo) -> list[Trajectory]:
        asked.append(len(requests))
        return []

    scene.rollouts.run = run
    assert await scene.spares.run(scene.requests, STAGE) == []
    assert asked == [2]
    assert scene.spares.metrics() == {}
