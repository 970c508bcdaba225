"""The reward that compares texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ale.errors import ConfigError, TaskError
from ale.registry.drivers import load_plugin
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.task import Task
from ale.trajectory import Trajectory
from ale_rewards.exact_reward import ExactReward, last_box

MakeEpisode, MakeTask = Callable[..., Trajectory], Callable[..., Task]


@pytest.mark.parametrize(
    ("reply", "answer", "settings", "passed"),
    [
        ("42", "42", {}, True),
        (" The  Answer.\n", "the answer", {}, True),
        ("The answer", "the answer", {"normalize": False}, False),
        ("42", 42, {}, True),
        ("42", 42.0, {}, True),
        ("2.5", 2.5, {}, True),
        ("43", "42", {}, False),
        ("Paris", ["paris", "Paris, France"], {}, True),
        ("Rome", ["paris", "Paris, France"], {}, False),
        ("Answer: 41\nAnswer: 42", "42", {"extract": r"Answer: (\d+)"}, True),
        ("Answer: 42\nAnswer: 41", "42", {"extract": r"Answer: (\d+)"}, False),
        ("so 42", "42", {"extract": r"\d+$"}, True),
        ("no number", "42", {"extract": r"\d+$"}, False),
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}", {"extract": r"\boxed{...}"}, True),
        (r"\boxed{1} then \boxed{2", "1", {"extract": r"\boxed{...}"}, True),
        ("42", "42", {"extract": r"\boxed{...}"}, False),
        ("", "42", {}, False),
    ],
)
async def test_a_reply_is_right_or_wrong(
    reply: str, answer: Any, settings: dict[str, Any], passed: bool, episode: MakeEpisode, make_task: MakeTask
) -> None:
    reward = ExactReward(ExactReward.Config.model_validate(settings), DriverContext())
    score = await reward.score(make_task(answer=answer), None, episode("first", reply))  # type: ignore[arg-type]
    assert (score.passed, score.value) == (passed, float(passed))


async def test_a_column_that_no_task_has_refuses_the_run_and_one_that_a_later_task_lacks_is_its_fault(
    episode: MakeEpisode, make_task: MakeTask
) -> None:
    reward = ExactReward(ExactReward.Config(answer="anser"), DriverContext())
    with pytest.raises(ConfigError, match=r"nothing in the column 'anser'\. Did you mean 'answer'\? Its columns are"):
        await reward.score(make_task(answer="1"), None, episode("1"))  # type: ignore[arg-type]
    await reward.score(make_task(anser="1"), None, episode("1"))  # type: ignore[arg-type]
    for columns in ({}, {"anser": None}):
        with pytest.raises(TaskError, match="nothing in the column 'anser'"):
            await reward.score(make_task(**columns), None, episode("1"))  # type: ignore[arg-type]


def test_a_wrong_pattern_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"reward\.extract: '\(' is no regular expression"):
        load_plugin("reward", PluginChoice(use="exact", settings={"extract": "("}), "reward")


def test_a_box_that_is_not_closed_is_none() -> None:
    assert last_box(r"\boxed{a {b} c} \boxed{d") == "a {b} c"
    assert last_box("{}") is None
