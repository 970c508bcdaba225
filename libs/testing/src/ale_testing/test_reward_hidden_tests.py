"""These tests check a reward that runs the task's hidden tests; one that judges otherwise is bound by none of them.

Whether it does is seen, not asked: the command of the kit's task leaves a file behind."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from ale.errors import AleError, SandboxError, TaskError
from ale.task import Task, TaskTests
from ale.trajectory import Score
from ale_testing.async_tests import async_test, cancelled, fails_with
from ale_testing.fake_sandboxes import CLEARED
from ale_testing.plugin_under_test import Subject
from ale_testing.test_reward import DONE, check, graded

RAN = "touch tests-ran; "


def task(command: str, **more: Any) -> Task:
    """A task that is solved where the file `out` says so."""
    return Task(id="kit-reward", instruction="Write 'yes' into out.", tests=TaskTests(command=command, **more))


GREP = task(f"{RAN}grep -qx yes out")


async def judge(subject: Subject, of: Task, **files: str) -> tuple[Score, bool]:
    """The score of an episode that left these files, and whether the task's tests ran for it."""
    async with subject.build() as reward, graded(subject, of, **files) as (folder, box):
        found = await asyncio.wait_for(reward.score(of, box, DONE), 90)
        check(found, DONE)
        return found, (folder.folder / "tests-ran").exists()


async def runs_tests(subject: Subject) -> bool:
    """Whether it judges by the task's tests; it may refuse a task that has nothing else."""
    async with subject.build() as reward, graded(subject, GREP, out="yes\n") as (folder, box):
        with suppress(AleError):
            await asyncio.wait_for(reward.score(GREP, box, DONE), 90)
        return bool((folder.folder / "tests-ran").exists())


@pytest.mark.ale_sandbox
@async_test
async def test_passed_tests_score_no_less_than_failed_ones(subject: Subject) -> None:
    if not await runs_tests(subject):
        return
    (good, _), (bad, _) = await judge(subject, GREP, out="yes\n"), await judge(subject, GREP, out="no\n")
    assert good.value >= bad.value, f"a solved task must not score below an unsolved one: {good.value} and {bad.value}"


@pytest.mark.ale_sandbox
@async_test
async def test_tests_that_fail_are_never_passed(subject: Subject) -> None:
    if not await runs_tests(subject):
        return
    for files in ({"out": "no\n"}, {}):
        bad, ran = await judge(subject, GREP, **files)
        assert not (ran and bad.passed), "a reward that runs the tests must not call it passed where they fail"


@pytest.mark.ale_sandbox
@async_test
async def test_the_agent_cannot_watch_the_tests_nor_find_them_later(subject: Subject) -> None:
    if not await runs_tests(subject):
        return
    secret = "grep -qx yes out # kit-secret"
    hidden = task(f'{RAN}sh "$ALE_TESTS/check.sh"', files={"check.sh": secret})
    async with subject.build() as reward, graded(subject, hidden, out="yes\n") as (folder, box):
        await reward.score(hidden, box, DONE)
        first = next((command for command in folder.commands if command != ""), "")
        assert first == CLEARED, "before the tests are copied in, sandbox.kill_agent_processes() must have been called"
        left = [path for path in folder.folder.rglob("*") if path.is_file() and b"kit-secret" in path.read_bytes()]
        assert not left, f"hidden tests must be taken away after the scoring; left is {left[0].name if left else ''}"


@pytest.mark.ale_sandbox
@async_test
async def test_tests_that_cannot_run_never_score_zero(subject: Subject) -> None:
    if not await runs_tests(subject):
        return
    missing = task("no-such-program-of-ale --all")
    async with subject.build() as reward, graded(subject, missing) as (_, box):
        why = "tests that start with a program that is not there"
        await fails_with(reward.score(missing, box, DONE), SandboxError, TaskError, why=why)


@pytest.mark.ale_sandbox
@async_test
async def test_a_sandbox_that_dies_during_the_tests_never_scores_zero(subject: Subject) -> None:
    if not await runs_tests(subject):
        return
    slow = task("sleep 30; true")
    async with subject.build() as reward, graded(subject, slow) as (folder, box):
        scoring = asyncio.ensure_future(reward.score(slow, box, DONE))
        await asyncio.sleep(0.3)
        folder.die()
        await fails_with(asyncio.wait_for(scoring, 60), SandboxError, TaskError, why="scoring in a sandbox that dies")


@pytest.mark.ale_sandbox
@async_test
async def test_endless_tests_are_stopped(subject: Subject) -> None:
    if not await runs_tests(subject):
        return
    found, _ = await judge(subject, task(f"{RAN}sleep 600", timeout_s=0.5), out="yes\n")
    assert found.seconds < 30, f"tests beyond their time-out must be stopped; they ran for {found.seconds:.0f} s"
    assert not found.passed, "tests that did not end must not count as passed"


@pytest.mark.ale_sandbox
@async_test
async def test_output_of_the_tests_may_be_any_bytes(subject: Subject) -> None:
    if not await runs_tests(subject):
        return
    loud = "head -c 100000 /dev/urandom; printf 'größe ✓ \\377'; grep -qx yes out"
    await judge(subject, task(loud), out="yes\n")


@pytest.mark.ale_sandbox
@async_test
async def test_test_files_are_there_as_they_are(subject: Subject) -> None:
    if not await runs_tests(subject):
        return
    every_byte = bytes(range(256))
    octal = "".join(f"\\{byte:03o}" for byte in every_byte)
    command = f'{RAN}printf \'{octal}\' | cmp - "$ALE_TESTS/sub/bytes" && sh "$ALE_TESTS/check.sh"'
    hidden = task(command, files={"check.sh": "grep -qx yes out\n", "sub/bytes": every_byte})
    try:
        (good, _), (bad, _) = await judge(subject, hidden, out="yes\n"), await judge(subject, hidden, out="no\n")
    except AleError as error:
        raise AssertionError(f"a task with test files must be scored; it raised {error}") from error
    assert good.passed, f"test files, text or bytes, must be in $ALE_TESTS while the tests run; {good.detail[-300:]}"
    assert good.value >= bad.value, "test files must be there while the tests run"


@pytest.mark.ale_sandbox
@async_test
async def test_cancelling_ends_the_tests(subject: Subject) -> None:
    slow = task("sleep 30")
    async with subject.build() as reward, graded(subject, slow) as (folder, box):
        for after_s in (0.0, 0.02, 0.2):
            await cancelled(reward.score(slow, box, DONE), after_s)
            assert not folder.running, "cancelling the scoring must end the tests"
