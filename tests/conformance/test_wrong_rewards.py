"""Deliberately wrong rewards: each breaks one rule of the contract, and the kit says which."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong import Wrong, assert_found

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]

REWARD = (
    "from ale_tests import TestsReward\nfrom dataclasses import replace\n"
    "from ale.errors import SandboxError, TaskError\nfrom ale.trajectory import Score\nimport asyncio\n"
    "class Fixed(TestsReward):\n"
)

WRONG = {
    "a dead sandbox is a zero": Wrong(
        "reward",
        REWARD
        + """
    async def score(self, task, sandbox, trajectory):
        try:
            return await super().score(task, sandbox, trajectory)
        except SandboxError:
            return Score(0.0, False)
""",
        "test_a_dead_sandbox_never_scores_zero",
        "scoring in a dead sandbox: it must raise SandboxError, it returned Score(value=0.0",
    ),
    "tests that cannot run are a zero": Wrong(
        "reward",
        REWARD
        + """
    async def score(self, task, sandbox, trajectory):
        try:
            return await super().score(task, sandbox, trajectory)
        except TaskError:
            return Score(0.0, False)
""",
        "test_tests_that_cannot_run_never_score_zero",
        "tests that start with a program that is not there: it must raise SandboxError or TaskError, it returned "
        "Score(value=0.0",
    ),
    "everything passes": Wrong(
        "reward",
        REWARD
        + """
    async def score(self, task, sandbox, trajectory):
        return replace(await super().score(task, sandbox, trajectory), passed=True)
""",
        "test_tests_that_fail_are_never_passed",
        "must not call it passed where they fail",
    ),
    "a time-out passes": Wrong(
        "reward",
        REWARD
        + """
    async def score(self, task, sandbox, trajectory):
        found = await super().score(task, sandbox, trajectory)
        return replace(found, passed=found.passed or "did not end" in found.detail)
""",
        "test_endless_tests_are_stopped",
        "tests that did not end must not count as passed",
    ),
    "the agent may watch": Wrong(
        "reward",
        REWARD
        + """
    async def score(self, task, sandbox, trajectory):
        async def nothing(): ...
        sandbox.kill_agent_processes = nothing
        return await super().score(task, sandbox, trajectory)
""",
        "test_the_agent_cannot_watch_the_tests_nor_find_them_later",
        "sandbox.kill_agent_processes() must have been called",
    ),
    "the tests stay": Wrong(
        "reward",
        REWARD
        + """
    async def score(self, task, sandbox, trajectory):
        await sandbox.kill_agent_processes()
        await sandbox.upload({"t/" + k: v.encode() for k, v in task.tests.files.items()})
        done = await sandbox.exec("ALE_TESTS=$PWD/t; " + task.tests.command)
        return Score(1.0, done.exit_code == 0)
""",
        "test_the_agent_cannot_watch_the_tests_nor_find_them_later",
        "hidden tests must be taken away after the scoring; left is check.sh",
    ),
    "passed is a number": Wrong(
        "reward",
        REWARD
        + """
    async def score(self, task, sandbox, trajectory):
        return Score(1.0, 1)
""",
        "test_an_untouched_sandbox_gets_a_score",
        "Score.passed must be true or false, not 1",
    ),
    "a number too few": Wrong(
        "reward",
        REWARD
        + """
    async def score(self, task, sandbox, trajectory):
        return Score(1.0, True, by_chunk=(1.0,) * len(trajectory.turns))
""",
        "test_rewards_of_steps_are_scored_chunk_by_chunk",
        "Score.by_chunk must hold a number for each of the 3 chunks of the trajectory, side calls included, not 2",
    ),
    "a part that is no number": Wrong(
        "reward",
        REWARD
        + """
    async def score(self, task, sandbox, trajectory):
        return Score(1.0, True, parts={"style": float("nan")})
""",
        "test_an_untouched_sandbox_gets_a_score",
        "Score.parts must hold finite numbers, not style: nan",
    ),
    "a sandbox that it says it does not use": Wrong(
        "reward",
        REWARD
        + """
    @classmethod
    def uses_sandbox(cls, config):
        return False
""",
        "test_whole_episodes_are_scored",
        "A plugin wanted to use the sandbox, but this run has none",
    ),
    "no tests are a crash": Wrong(
        "reward",
        REWARD
        + """
    async def score(self, task, sandbox, trajectory):
        await sandbox.exec(task.tests.command)
        return Score(1.0, True)
""",
        "test_a_task_without_tests_is_scored_or_is_the_tasks_fault",
        "must raise TaskError where there are none (task.tests is None); it raised AttributeError",
    ),
    "bytes are no files": Wrong(
        "reward",
        REWARD
        + """
    async def score(self, task, sandbox, trajectory):
        tests = task.tests.model_copy(
            update={"files": {path: data for path, data in task.tests.files.items() if isinstance(data, str)}}
        )
        return await super().score(task.model_copy(update={"tests": tests}), sandbox, trajectory)
""",
        "test_test_files_are_there_as_they_are",
        "test files, text or bytes, must be in $ALE_TESTS while the tests run",
    ),
    "upside down": Wrong(
        "reward",
        REWARD
        + """
    async def score(self, task, sandbox, trajectory):
        found = await super().score(task, sandbox, trajectory)
        return Score(-found.value, found.passed)
""",
        "test_passed_tests_score_no_less_than_failed_ones",
        "a solved task must not score below an unsolved one",
    ),
}


@pytest.mark.parametrize("what", WRONG, ids=lambda what: what.replace(" ", "-"))
def test_the_kit_says_what_is_wrong(what: str, tmp_path: Path) -> None:
    assert_found(WRONG[what], tmp_path)
