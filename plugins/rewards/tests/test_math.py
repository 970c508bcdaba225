"""The reward that compares mathematics, in its real processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ale.errors import TaskError
from ale.specs.driver import DriverContext
from ale.task import Task
from ale.trajectory import Trajectory
from ale_rewards.math_reward import Comparer, MathReward

MakeEpisode, MakeTask = Callable[..., Trajectory], Callable[..., Task]
ENDLESS = r"$9^{9^{9^{9^{9}}}} \cdot (10^{8})!$"


@pytest.fixture
async def reward() -> AsyncIterator[MathReward]:
    async with MathReward(MathReward.Config(timeout_s=30, processes=1), DriverContext()) as started:
        yield started


async def hurry(reward: MathReward, episode: MakeEpisode, make_task: MakeTask) -> None:
    """From now on a comparison may take a second: its process has imported what it needs, which may take longer."""
    assert (await reward.score(make_task(answer="1"), None, episode("1"))).passed  # type: ignore[arg-type]
    reward._all[0]._timeout_s = 1


async def test_answers_are_equal_as_mathematics(reward: MathReward, episode: MakeEpisode, make_task: MakeTask) -> None:
    cases = [
        ("42", "so it is 42.", True),
        (42, "41", False),
        (r"\frac{1}{2}", r"\boxed{0.5}", True),
        (r"\frac{1}{2}", r"\boxed{\frac{2}{4}}", True),
        ("x^2+2x+1", r"$(x+1)^2$", True),
        ("(1,2)", r"$(2,1)$", False),
        ("1", "no number", False),
        ("1", "", False),
    ]
    for right, reply, passed in cases:
        score = await reward.score(make_task(answer=right), None, episode(reply))  # type: ignore[arg-type]
        assert (score.passed, score.value) == (passed, float(passed)), (right, reply, score.detail)


async def test_a_reply_that_never_ends_is_wrong_and_the_next_one_is_compared(
    reward: MathReward, episode: MakeEpisode, make_task: MakeTask
) -> None:
    await hurry(reward, episode, make_task)
    score = await reward.score(make_task(answer="1"), None, episode(ENDLESS))  # type: ignore[arg-type]
    assert not score.passed
    reward._all[0]._timeout_s = 30
    assert (await reward.score(make_task(answer="1"), None, episode("1"))).passed  # type: ignore[arg-type]


async def test_a_process_that_was_killed_is_started_again(
    reward: MathReward, episode: MakeEpisode, make_task: MakeTask
) -> None:
    assert (await reward.score(make_task(answer="1"), None, episode("1"))).passed  # type: ignore[arg-type]
    for pid in children():
        os.kill(pid, 9)  # at once, before anybody has noticed
    assert (await reward.score(make_task(answer="1"), None, episode("1"))).passed  # type: ignore[arg-type]


async def test_a_reply_that_ends_the_process_is_wrong(
    reward: MathReward, episode: MakeEpisode, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparing, answer = asyncio.Event(), Comparer._answer

    async def answer_and_tell(comparer: Comparer, process: asyncio.subprocess.Process, timeout_s: float) -> Any:
        if timeout_s == 2 * 30 + 2:  # the right answer has been read
            comparing.set()
        return await answer(comparer, process, timeout_s)

    monkeypatch.setattr(Comparer, "_answer", answer_and_tell)
    scoring = asyncio.create_task(reward.score(make_task(answer="1"), None, episode(ENDLESS)))  # type: ignore[arg-type]
    await comparing.wait()
    for pid in children():
        os.kill(pid, 9)
    score = await scoring
    assert (score.passed, score.detail) == (False, "The answer could not be compared within 60 s.")


async def test_a_right_answer_that_cannot_be_read_is_a_broken_task(
    reward: MathReward, episode: MakeEpisode, make_task: MakeTask
) -> None:
    with pytest.raises(TaskError, match="Task q1: its answer '' cannot be read as mathematics"):
        await reward.score(make_task(answer=""), None, episode("1"))  # type: ignore[arg-type]


async def test_no_process_is_left_after_the_end_or_a_cancelled_comparison(
    episode: MakeEpisode, make_task: MakeTask
) -> None:
    async with MathReward(MathReward.Config(timeout_s=20, processes=2), DriverContext()) as reward:
        made = (reward.score(make_task(answer="1"), None, episode("1")) for _ in range(5))  # type: ignore[arg-type]
        assert [score.passed for score in await asyncio.gather(*made)] == [True] * 5
        assert 1 <= len(children()) <= 2
        scoring = asyncio.create_task(reward.score(make_task(answer="1"), None, episode(ENDLESS)))  # type: ignore[arg-type]
        await asyncio.sleep(0.3)
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring
    assert not children()


def children() -> list[int]:
    """The processes of comparisons that this process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if (
                b"math_worker.py" in path.read_bytes()
                and f"PPid:\t{os.getpid()}\n" in (path.parent / "status").read_text()
            ):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
