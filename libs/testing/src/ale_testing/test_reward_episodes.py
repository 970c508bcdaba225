"""These tests score whole episodes, as a run does: an agent plays the tasks of `--ale-tasks`, or one of the kit's."""

from __future__ import annotations

import asyncio

from ale.trajectory import Trajectory
from ale_testing.async_tests import async_test
from ale_testing.played_episodes import ANSWERS, demonstrations, open_table, playable
from ale_testing.plugin_under_test import Subject
from ale_testing.test_reward import TASK, check


def check_scored(played: Trajectory) -> None:
    """What holds of an episode that was scored."""
    assert played.failure is None, f"the episode of {played.task_id} must be scored; {played.failure}"
    check(played.reward, played)


@async_test
async def test_whole_episodes_are_scored(subject: Subject) -> None:
    tasks = playable(await subject.tasks(TASK))
    assert tasks, "the first tasks of --ale-tasks need images; name a source with a task that needs none"
    async with open_table(subject) as table:
        for played in [await table.play(task) for task in tasks]:
            check_scored(played)
        for played in await asyncio.gather(*(table.play(task) for task in tasks * 2)):
            check_scored(played)


@async_test
async def test_what_the_tasks_demonstrate_is_scored(subject: Subject) -> None:
    tasks = playable(await subject.tasks(TASK))
    async with demonstrations(subject, tasks) as shown, open_table(subject) as table:
        for task, start in shown:
            check_scored(await table.play(task, ANSWERS, start))
