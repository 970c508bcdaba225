"""The reward that sums the rewards of steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ale.specs.driver import DriverContext
from ale.task import Task
from ale.trajectory import Observation, Trajectory
from ale_rewards import StepsReward

MakeEpisode, MakeTask = Callable[..., Trajectory], Callable[..., Task]


def step(chunk: int, reward: float | None) -> Observation:
    return Observation(chunk, "user", {}, "", None, 0.0, reward)


async def test_rewards_of_steps_go_to_their_chunks_and_their_sum_is_the_value(
    episode: MakeEpisode, make_task: MakeTask
) -> None:
    seen = (step(0, 0.25), step(0, 0.5), step(2, None), step(3, 0.25))
    reward = StepsReward(StepsReward.Config(), DriverContext())
    score = await reward.score(make_task(), None, episode("a", "b", "c", side_after=0, observations=seen))  # type: ignore[arg-type]
    assert score.by_chunk == (0.75, 0.0, 0.0, 0.25)
    assert (score.value, score.passed) == (1.0, True)


@pytest.mark.parametrize(("pass_at", "passed"), [(1.0, False), (0.5, True)])
async def test_success_is_a_sum_that_reaches_a_setting(
    pass_at: float, passed: bool, episode: MakeEpisode, make_task: MakeTask
) -> None:
    reward = StepsReward(StepsReward.Config(pass_at=pass_at), DriverContext())
    score = await reward.score(make_task(), None, episode("a", observations=(step(0, 0.5),)))  # type: ignore[arg-type]
    assert score.passed is passed


async def test_an_episode_without_rewards_of_steps_says_so(episode: MakeEpisode, make_task: MakeTask) -> None:
    reward = StepsReward(StepsReward.Config(), DriverContext())
    score = await reward.score(make_task(), None, episode("a", observations=(step(0, None),)))  # type: ignore[arg-type]
    assert (score.value, score.passed, score.detail) == (0.0, False, "No step of this episode had a reward.")
