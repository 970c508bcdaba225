"""The reward that runs the reply's program, in a real sandbox."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ale.errors import SandboxError, TaskError
from ale.specs.driver import DriverContext
from ale.specs.sandbox import Sandbox, SandboxSpec
from ale.task import Task
from ale.trajectory import Score, Trajectory
from ale_local import LocalSandboxProvider
from ale_rewards.code_cases import last_program, read_cases
from ale_rewards.code_reward import CodeReward
from ale_testing.fake_sandboxes import FolderSandbox

MakeEpisode, MakeTask = Callable[..., Trajectory], Callable[..., Task]
Scored = Callable[..., Any]
DOUBLE = "def double(x):\n    return 2 * x"
READS = "for _ in range(int(input())):\n    print(2 * int(input()))"


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    config = LocalSandboxProvider.Config(isolation="none")
    async with (
        LocalSandboxProvider(config, DriverContext()) as provider,
        await provider.start_sandbox(SandboxSpec(network="full")) as box,
    ):
        yield box


@pytest.fixture
def score(sandbox: Sandbox, episode: MakeEpisode, make_task: MakeTask) -> Scored:
    """Return the function that scores a program against cases."""

    async def run(program: str, cases: Any, **config: Any) -> Score:
        reward = CodeReward(CodeReward.Config(**config), DriverContext())
        reply = f"First:\n```\nnot this\n```\nthen\n```python\n{program}\n```\nDone."
        return await reward.score(make_task(tests=cases), sandbox, episode(reply))  # type: ignore[arg-type]

    return run


@pytest.mark.parametrize(
    ("program", "cases", "passed", "detail"),
    [
        (DOUBLE, "assert double(2) == 4", True, "1 of 1 cases passed."),
        (DOUBLE, ["assert double(2) == 4", "assert double(0) == 0"], True, "2 of 2 cases passed."),
        (
            DOUBLE,
            ["assert double(2) == 4", "assert double(2) == 5"],
            False,
            "Case 2 of 2: the program ended with exit code",
        ),
        (DOUBLE.replace("2 *", "3 *"), "assert double(2) == 4", False, "AssertionError"),
        ("import os; os._exit(0)", "assert False", False, "the program ended before its test."),
        ("x = (", "assert True", False, "SyntaxError"),
        (READS, [{"input": "2\n1\n2\n", "output": "2\n4\n"}], True, "1 of 1"),
        (READS, {"inputs": ["1\n1\n"], "outputs": [" 2  \n\n"]}, True, "1 of 1"),
        (READS, json.dumps({"inputs": ["1\n1\n"], "outputs": ["2"]}), True, "1 of 1"),
        (READS, [{"input": ["1", "1"], "output": ["2"]}], True, "1 of 1"),
        (READS, [{"input": "1\n1\n", "output": "3\n"}], False, "it printed '2'"),
        ("while True: pass", [{"input": "", "output": ""}], False, "the program did not end within 1 s."),
    ],
)
async def test_a_program_passes_all_cases_or_fails(
    score: Scored, program: str, cases: Any, passed: bool, detail: str
) -> None:
    found = await score(program, cases, timeout_s=1)
    assert (found.passed, found.value) == (passed, float(passed)), found.detail
    assert detail in found.detail


async def test_the_value_may_be_the_share_of_passed_cases(score: Scored) -> None:
    cases = [f"assert double({x}) == {y}" for x, y in ((1, 2), (2, 5), (3, 6), (4, 8))]
    found = await score(DOUBLE, cases, partial=True)
    assert (found.value, found.passed) == (0.75, False)
    assert found.detail.startswith("Case 2 of 4")


async def test_nothing_is_left_in_the_sandbox(score: Scored, sandbox: Sandbox) -> None:
    await score(DOUBLE, "assert True")
    left = await sandbox.exec('ls -d "${TMPDIR:-/tmp}"/ale-code-* 2>/dev/null | wc -l', user="tests")
    assert left.output.strip() == "0"


async def test_a_reply_without_a_program_is_wrong(sandbox: Sandbox, episode: MakeEpisode, make_task: MakeTask) -> None:
    reward = CodeReward(CodeReward.Config(), DriverContext())
    found = await reward.score(make_task(tests="assert True"), sandbox, episode("print(1)"))  # type: ignore[arg-type]
    assert (found.value, found.passed) == (0.0, False)
    assert "no fenced code block" in found.detail


async def test_what_cannot_run_is_an_error_and_no_zero(
    score: Scored, episode: MakeEpisode, make_task: MakeTask
) -> None:
    with pytest.raises(TaskError, match="has no no-such-python to run the program"):
        await score(DOUBLE, "assert True", interpreter="no-such-python -P")
    for cases in ([], {"inputs": [1]}, [3], {"inputs": ["1"], "outputs": []}):
        with pytest.raises(TaskError, match="its column 'tests' holds no cases"):
            await score(DOUBLE, cases)
    async with FolderSandbox() as dead:
        dead.die()
        reward = CodeReward(CodeReward.Config(), DriverContext())
        with pytest.raises(SandboxError):
            await reward.score(make_task(tests="assert True"), dead, episode("```\nx = 1\n```"))  # type: ignore[arg-type]


def test_the_last_block_is_the_program() -> None:
    assert last_program("```python\na\n```\n text\n```py\nb\n\nc\n```") == "b\n\nc\n"
    assert last_program("```python\nnever closed") is None
    assert last_program("inline ```code``` only") is None


def test_code_that_is_json_by_chance_is_code() -> None:
    assert read_cases("42")[0].after == "42"
    assert read_cases('["assert True"]')[0].after == "assert True"
