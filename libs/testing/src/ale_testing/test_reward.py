"""These tests check what holds of every reward, however it judges: its scores, and that a lost sandbox is no zero.

They use the tasks of `--ale-tasks`, or one of the kit's. A reward that says that it uses no sandbox (`uses_sandbox`)
gets none, and a call of it is its fault. One that uses it need not do so for every episode, but where a call of its
finds the sandbox dead, it must not give a score."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from ale.errors import SandboxError, TaskError
from ale.rollout.episode import validate_score
from ale.rollout.no_sandbox import NoSandbox
from ale.specs.sandbox import SandboxSpec
from ale.task import Task, TaskTests
from ale.trajectory import Observation, Score, Trajectory
from ale_testing.async_tests import async_test, cancelled
from ale_testing.fake_sandboxes import FolderSandbox
from ale_testing.plugin_under_test import Subject
from ale_testing.sample_batches import trajectory, with_side_call

DONE = trajectory(0, reward=0.0)
TASK = Task(
    id="kit-reward",
    instruction="Write 'yes' into out.",
    tests=TaskTests(command="grep -qx yes out"),
    metadata={"answer": "yes"},
)


async def own_task(subject: Subject) -> Task:
    """The task whose episodes are scored: the first of `--ale-tasks`, or the kit's."""
    return (await subject.tasks(TASK))[0]


@asynccontextmanager
async def graded(subject: Subject, task: Task, **files: str) -> AsyncIterator[tuple[Any, Any]]:
    """A folder with files in which commands run, and the same as a reward gets it, which can open another one. Where
    the reward uses no sandbox, what a run has in its place."""
    box = FolderSandbox(task) if subject.uses_sandbox else NoSandbox(SandboxSpec())
    async with box:
        if isinstance(box, FolderSandbox):
            await box.upload({name: text.encode() for name, text in files.items()})
        judged: Any = box
        judged.open_another = lambda: FolderSandbox(task)
        yield box, judged


async def score(subject: Subject, task: Task, done: Trajectory = DONE, **files: str) -> Score:
    """The score of an episode that left these files."""
    async with subject.build() as reward, graded(subject, task, **files) as (_, box):
        found: Score = await asyncio.wait_for(reward.score(task, box, done), 90)
        check(found, done)
        return found


def check(found: object, done: Trajectory) -> None:
    """What holds of any score."""
    assert isinstance(found, Score), f"score() must return a Score, not {type(found).__name__}"
    assert isinstance(found.passed, bool), f"Score.passed must be true or false, not {found.passed!r}"
    assert math.isfinite(found.value), f"Score.value must be a finite number, not {found.value!r}"
    assert isinstance(found.detail, str), f"Score.detail must be a text, not {found.detail!r:.80}"
    if found.by_chunk:
        assert len(found.by_chunk) == len(done.chunks), (
            f"Score.by_chunk must hold a number for each of the {len(done.chunks)} chunks of the trajectory, side "
            f"calls included, not {len(found.by_chunk)}"
        )
        side = [found.by_chunk[chunk.index] for chunk in done.chunks if chunk.side]
        assert not any(side), f"Score.by_chunk must hold a 0 for a side call, not {side}"
    for name, value in found.parts.items():
        assert isinstance(name, str), f"Score.parts has names, not {name!r}"
        number = isinstance(value, (int, float)) and math.isfinite(value)
        assert number, f"Score.parts must hold finite numbers, not {name}: {value!r}"
    validate_score(found, done)


@async_test
async def test_an_episode_gets_a_value_and_a_verdict(subject: Subject) -> None:
    for task in await subject.tasks(TASK):
        await score(subject, task, out="yes\n")


@async_test
async def test_an_untouched_sandbox_gets_a_score(subject: Subject) -> None:
    await score(subject, await own_task(subject))


@async_test
async def test_rewards_of_steps_are_scored_chunk_by_chunk(subject: Subject) -> None:
    task = await own_task(subject)
    for done in (trajectory(1, reward=0.0, chunks=3), with_side_call(1, reward=0.0)):
        turns = done.turns
        steps = [(turns[0], 0.5), (turns[-1], None), (turns[-1], -1.0)]
        seen = tuple(Observation(chunk.index, "step", {}, "seen", None, 0.1, reward) for chunk, reward in steps)
        await score(subject, task, replace(done, observations=seen), out="yes\n")


@async_test
async def test_an_episode_without_a_turn_gets_a_score(subject: Subject) -> None:
    task = await own_task(subject)
    async with subject.build() as reward, graded(subject, task) as (_, box):
        nothing = replace(DONE, sequences=(), chunks=(), ended_by="budget")
        check(await asyncio.wait_for(reward.score(task, box, nothing), 90), nothing)


@async_test
async def test_a_task_without_tests_is_scored_or_is_the_tasks_fault(subject: Subject) -> None:
    task = (await own_task(subject)).model_copy(update={"tests": None})
    async with subject.build() as reward, graded(subject, task) as (_, box):
        try:
            check(await asyncio.wait_for(reward.score(task, box, DONE), 90), DONE)
        except TaskError:
            return
        except Exception as error:
            raise AssertionError(
                f"a reward that needs the task's tests must raise TaskError where there are none (task.tests is None); "
                f"it raised {type(error).__name__}: {error}"
            ) from error


@async_test
async def test_the_same_state_has_the_same_score(subject: Subject) -> None:
    task = await own_task(subject)
    first, second = [await score(subject, task, out="yes\n") for _ in range(2)]
    assert (first.value, first.passed) == (second.value, second.passed), "the same state must get the same score"


@async_test
async def test_episodes_are_scored_side_by_side(subject: Subject) -> None:
    task = await own_task(subject)
    left = ["yes\n" if i % 2 == 0 else "no\n" for i in range(8)]
    found = await asyncio.gather(*(score(subject, task, out=text) for text in left))
    alone = {text: await score(subject, task, out=text) for text in ("yes\n", "no\n")}
    for text, one in zip(left, found, strict=True):
        assert one.passed == alone[text].passed, "scores given side by side must be those given one by one"


@async_test
async def test_cancelling_ends_the_scoring(subject: Subject) -> None:
    task = await own_task(subject)
    async with subject.build() as reward, graded(subject, task, out="yes\n") as (_, box):
        for after_s in (0.0, 0.02, 0.2):
            await cancelled(reward.score(task, box, DONE), after_s)


@pytest.mark.ale_sandbox
@async_test
async def test_a_dead_sandbox_never_scores_zero(subject: Subject) -> None:
    task = await own_task(subject)
    async with subject.build() as reward, graded(subject, task) as (folder, box):
        folder.die()
        why = "scoring in a dead sandbox: it must raise SandboxError"
        try:
            found = await reward.score(task, box, DONE)
        except SandboxError:
            return
        except Exception as error:
            raise AssertionError(f"{why}, it raised {type(error).__name__}: {error}") from error
        assert not folder.refused, f"{why}, it returned {found!r:.200}"
