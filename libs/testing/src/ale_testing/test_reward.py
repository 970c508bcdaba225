"""These tests check that a reward scores the sandbox as it is, and never scores an infrastructure fault as zero."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from ale.errors import AleError, SandboxError, TaskError
from ale.task import Task, TaskTests
from ale.trajectory import Score
from ale_testing.async_tests import async_test, cancelled, fails_with
from ale_testing.fake_sandboxes import CLEARED, FolderSandbox
from ale_testing.plugin_under_test import Subject
from ale_testing.sample_batches import trajectory

DONE = trajectory(0, reward=0.0)


def task(command: str, **more: Any) -> Task:
    """A task that is solved where the file `out` says so."""
    return Task(id="kit-reward", instruction="Write 'yes' into out.", tests=TaskTests(command=command, **more))


RAN = "touch tests-ran; "
"""Tells that the reward runs the task's tests: some judge otherwise, and what tests say binds them in nothing."""
GREP = task(f"{RAN}grep -qx yes out")


async def score(subject: Subject, of: Task, **files: str) -> Score:
    """The score of a sandbox with these files."""
    return (await score_and_whether_tests_ran(subject, of, **files))[0]


async def score_and_whether_tests_ran(subject: Subject, of: Task, **files: str) -> tuple[Score, bool]:
    """The score, and whether the task's tests ran for it."""
    box = FolderSandbox()
    async with subject.build() as reward, box:
        await box.upload({name: text.encode() for name, text in files.items()})
        found = await asyncio.wait_for(reward.score(of, box, DONE), 90)
        assert isinstance(found, Score), f"score() must return a Score, not {type(found).__name__}"
        assert isinstance(found.passed, bool), f"Score.passed must be true or false, not {found.passed!r}"
        assert math.isfinite(found.value), f"Score.value must be a finite number, not {found.value!r}"
        return found, (box.folder / "tests-ran").exists()


@async_test
async def test_success_and_failure_get_a_score(subject: Subject) -> None:
    good, bad = await score(subject, GREP, out="yes\n"), await score(subject, GREP, out="no\n")
    assert good.value >= bad.value, f"a solved task must not score below an unsolved one: {good.value} and {bad.value}"


@async_test
async def test_tests_that_fail_are_never_passed(subject: Subject) -> None:
    for files in ({"out": "no\n"}, {}):
        bad, ran = await score_and_whether_tests_ran(subject, GREP, **files)
        assert not (ran and bad.passed), "a reward that runs the tests must not call it passed where they fail"


@async_test
async def test_the_agent_cannot_watch_the_tests_nor_find_them_later(subject: Subject) -> None:
    secret = "grep -qx yes out # kit-secret"
    hidden = task(f'{RAN}sh "$ALE_TESTS/check.sh"', files={"check.sh": secret})
    box = FolderSandbox()
    async with subject.build() as reward, box:
        await box.upload({"out": b"yes\n"})
        await reward.score(hidden, box, DONE)
        if not (box.folder / "tests-ran").exists():
            return  # it judges in its own way
        first = next((command for command in box.commands if command != ""), "")
        assert first == CLEARED, "before the tests are copied in, sandbox.kill_agent_processes() must have been called"
        left = [path for path in box.folder.rglob("*") if path.is_file() and b"kit-secret" in path.read_bytes()]
        assert not left, f"hidden tests must be taken away after the scoring; left is {left[0].name if left else ''}"


@async_test
async def test_tests_that_cannot_run_never_score_zero(subject: Subject) -> None:
    _, runs_tests = await score_and_whether_tests_ran(subject, GREP, out="yes\n")
    if not runs_tests:
        return  # it judges in its own way
    box = FolderSandbox()
    async with subject.build() as reward, box:
        why = "tests that start with a program that is not there"
        await fails_with(
            reward.score(task("no-such-program-of-ale --all"), box, DONE), SandboxError, TaskError, why=why
        )


@async_test
async def test_the_same_state_has_the_same_score(subject: Subject) -> None:
    first, second = [await score(subject, GREP, out="yes\n") for _ in range(2)]
    assert (first.value, first.passed) == (second.value, second.passed), "the same state must get the same score"


@async_test
async def test_an_empty_sandbox_gets_a_score(subject: Subject) -> None:
    await score(subject, GREP)


@async_test
async def test_a_dead_sandbox_never_scores_zero(subject: Subject) -> None:
    box = FolderSandbox()
    async with subject.build() as reward, box:
        box.die()
        await fails_with(reward.score(GREP, box, DONE), SandboxError, why="scoring in a dead sandbox")


@async_test
async def test_a_sandbox_that_dies_during_scoring_never_scores_zero(subject: Subject) -> None:
    box = FolderSandbox()
    async with subject.build() as reward, box:
        scoring = asyncio.ensure_future(reward.score(task("sleep 30; true"), box, DONE))
        await asyncio.sleep(0.3)
        if scoring.done() and scoring.exception() is None:
            return  # it judges without running the tests
        box.die()
        await fails_with(asyncio.wait_for(scoring, 60), SandboxError, TaskError, why="scoring in a sandbox that dies")


@async_test
async def test_endless_tests_are_stopped(subject: Subject) -> None:
    found, ran = await score_and_whether_tests_ran(subject, task(f"{RAN}sleep 600", timeout_s=0.5), out="yes\n")
    assert found.seconds < 30, f"tests beyond their time-out must be stopped; they ran for {found.seconds:.0f} s"
    assert not (ran and found.passed), "tests that did not end must not count as passed"


@async_test
async def test_output_of_the_tests_may_be_any_bytes(subject: Subject) -> None:
    found = await score(
        subject, task("head -c 100000 /dev/urandom; printf 'größe ✓ \\377'; grep -qx yes out"), out="yes\n"
    )
    assert isinstance(found.detail, str), "Score.detail is text"


@async_test
async def test_cancelling_ends_the_scoring(subject: Subject) -> None:
    box = FolderSandbox()
    async with subject.build() as reward, box:
        for after_s in (0.0, 0.02, 0.2):
            await cancelled(reward.score(task("sleep 30"), box, DONE), after_s)


@async_test
async def test_episodes_are_scored_side_by_side(subject: Subject) -> None:
    good = [i % 2 == 0 for i in range(8)]
    found = await asyncio.gather(*(score(subject, GREP, out="yes\n" if yes else "no\n") for yes in good))
    alone = {yes: await score(subject, GREP, out="yes\n" if yes else "no\n") for yes in (True, False)}
    for yes, one in zip(good, found, strict=True):
        assert one.passed == alone[yes].passed, "scores given side by side must be those given one by one"


@async_test
async def test_it_starts_with_hidden_tests_that_it_can_read(subject: Subject) -> None:
    hidden = task('sh "$ALE_TESTS/check.sh"', files={"check.sh": "grep -qx yes out\n"})
    try:
        good, bad = await score(subject, hidden, out="yes\n"), await score(subject, hidden, out="no\n")
    except AleError as error:
        raise AssertionError(f"a task with test files must be scored; it raised {error}") from error
    assert good.value >= bad.value, "test files must be there while the tests run"
