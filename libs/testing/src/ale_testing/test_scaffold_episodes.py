"""These tests play whole episodes, as a run does, on the tasks of `--ale-tasks` or on the kit's own."""

from __future__ import annotations

import asyncio

import pytest

from ale.task import Task
from ale.trajectory import Trajectory
from ale_testing.async_tests import async_test
from ale_testing.played_episodes import ANSWERS, Table, demonstrations, open_table, playable
from ale_testing.plugin_under_test import Subject
from ale_testing.test_scaffold import TASK


async def tasks_of(subject: Subject) -> list[Task]:
    """The tasks to play."""
    found = playable(await subject.tasks(TASK))
    assert found, "the first tasks of --ale-tasks need images; name a source with a task that needs none"
    return found


def check(task: Task, played: Trajectory) -> None:
    """What holds of any episode that a run can train on."""
    assert played.failure is None, (
        f"the episode of {task.id} must end without a failure, whatever the model says; {played.failure}"
    )
    assert played.turns, f"{task.id}: the model must be asked at least once, through the session, for a turn"
    assert played.reward is not None
    chunks = {chunk.index for chunk in played.chunks}
    for seen in played.observations:
        assert seen.chunk in chunks, f"{task.id}: observe() must name a chunk of the episode, not {seen.chunk}"
        assert isinstance(seen.text, str), f"{task.id}: observe() must be told a text, not {seen.text!r:.80}"


async def play_all(table: Table, tasks: list[Task]) -> list[Trajectory]:
    """All tasks, one after the other."""
    return [await table.play(task) for task in tasks]


@pytest.mark.ale_agent
@async_test
async def test_whole_episodes_end_and_are_recorded(subject: Subject) -> None:
    tasks = await tasks_of(subject)
    async with open_table(subject) as table:
        for task, played in zip(tasks, await play_all(table, tasks), strict=True):
            check(task, played)


@pytest.mark.ale_agent
@async_test
async def test_whole_episodes_side_by_side_are_as_one_by_one(subject: Subject) -> None:
    tasks = (await tasks_of(subject)) * 2
    async with open_table(subject) as table:
        alone = await play_all(table, tasks)
        together = await asyncio.gather(*(table.play(task) for task in tasks))
        for task, one, other in zip(tasks, alone, together, strict=True):
            check(task, other)
            assert one.ended_by == other.ended_by, "episodes side by side must end as they do one by one"


@pytest.mark.ale_agent
@async_test
async def test_what_the_tasks_demonstrate_is_played_to_its_end(subject: Subject) -> None:
    tasks = await tasks_of(subject)
    async with demonstrations(subject, tasks) as shown, open_table(subject) as table:
        for task, start in shown:
            check(task, await table.play(task, ANSWERS, start))
