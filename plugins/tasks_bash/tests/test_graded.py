"""The graded tasks: each reference solution passes, each untouched folder fails."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from ale.task import Task
from ale_bash.graded_tasks import graded_tasks

pytestmark = pytest.mark.asyncio(loop_scope="module")
TASKS = {task.id: task for task in graded_tasks()}


async def test_there_are_twenty_and_their_tags_say_what_they_need() -> None:
    assert len(TASKS) == len(graded_tasks()) == 20
    for task in TASKS.values():
        assert task.metadata["difficulty"] in task.tags
        assert {f"needs:{program}" for program in task.metadata["needs"]} <= set(task.tags)
        assert task.solution
        assert task.instruction


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> Task:
    """Each graded task that this machine has the programs for."""
    chosen = TASKS[request.param]
    if "pytest" in chosen.metadata["needs"] and importlib.util.find_spec("pytest") is None:
        pytest.skip("pytest is not installed")
    return chosen


async def test_the_reference_solution_passes(playground: Any, task: Task) -> None:
    assert task.solution is not None
    assert await playground.passes(task, task.solution)


async def test_the_untouched_folder_fails(playground: Any, task: Task) -> None:
    assert not await playground.passes(task)
