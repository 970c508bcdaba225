"""The long family `dials`: three forks, none of which can be gone back on, and a demonstrator that goes wrong at
them."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from ale.task import Task
from ale_bash import BashTasks
from ale_bash.families import FAMILIES, LONG_FAMILIES
from ale_bash.families.turn_dials import OPPOSITE, demonstrate

pytestmark = pytest.mark.asyncio(loop_scope="module")
Source = Callable[..., BashTasks]


def first(source: Source, count: int, **settings: Any) -> tuple[BashTasks, list[Task]]:
    bash = source(families=("dials",), **settings)
    return bash, list(islice(bash.tasks("train"), count))


async def test_long_families_are_chosen_by_name_and_are_no_default(source: Source) -> None:
    assert "dials" in LONG_FAMILIES
    assert not set(LONG_FAMILIES) & set(FAMILIES)
    assert {task.tags[0] for task in islice(source().tasks("train"), 80)} == set(FAMILIES)
    _, tasks = first(source, 200)
    assert {task.tags for task in tasks} == {("dials",)}


async def test_a_demonstration_without_wrong_turns_passes_in_seven_calls(playground: Any, source: Source) -> None:
    bash, tasks = first(source, 6, wrong_turn_rate=0)
    for task in tasks:
        responder = bash.demonstrator(task, 0)
        assert responder is not None
        played = await playground.play(task, responder)
        assert played.passed, played.text()
        assert played.finished
        assert played.turns == 7


async def test_each_single_wrong_turn_spoils_the_task_and_is_not_told(playground: Any, source: Source) -> None:
    _, (task,) = first(source, 1)
    right = [OPPOSITE[sign] for sign in task.files["signs"].split()]
    assert await playground.passes(task, "\n".join(f"sh turn.sh {word}" for word in right))
    for fork in range(3):
        words = [OPPOSITE[word] if i == fork else word for i, word in enumerate(right)]
        script = "\n".join(f'[ "$(sh turn.sh {word})" = turned ]' for word in words)
        assert not await playground.passes(task, f"set -e\n{script}")


async def test_a_dial_that_was_turned_stays(playground: Any, source: Source) -> None:
    _, (task,) = first(source, 1)
    right = [OPPOSITE[sign] for sign in task.files["signs"].split()]
    wrong_first = [OPPOSITE[right[0]], *right]
    assert not await playground.passes(task, "\n".join(f"sh turn.sh {word}" for word in wrong_first))
    late = "\n".join(f"sh turn.sh {word}" for word in [*right, "up"])
    assert await playground.passes(task, late), "a fourth turn turns nothing"
    assert not await playground.passes(task)


async def test_each_fork_is_wrong_by_itself_and_right_words_do_not_stand_out(source: Source) -> None:
    bash, tasks = first(source, 500, wrong_turn_rate=0.95)
    right_at, words, all_right = Counter[int](), Counter[str](), 0
    for task in tasks:
        for seed in range(4):
            turned = replay(bash, task, seed)
            signs = task.files["signs"].split()
            right = [OPPOSITE[sign] == word for sign, word in zip(signs, turned, strict=True)]
            right_at.update(i for i, hit in enumerate(right) if hit)
            all_right += all(right)
            words.update(
                "right" if hit else "copy" if sign == word else "other"
                for sign, word, hit in zip(signs, turned, right, strict=True)
            )
    for fork in range(3):
        assert 0.03 < right_at[fork] / 2000 < 0.07
    assert all_right <= 3, "three in a row are one in 8,000"
    assert 0.87 < words["copy"] / 6000 < 0.92
    assert 0.007 < words["other"] / 6 / 6000 < 0.012, "six other words share what is left"


def replay(bash: BashTasks, task: Task, seed: int) -> list[str]:
    """The words of one demonstration, without a sandbox."""
    steps = demonstrate(task.metadata["facts"], random.Random(f"{seed}/{task.id}"), bash.config.wrong_turn_rate)
    turned = []
    for sign in task.files["signs"].split():
        assert json.dumps(next(steps).arguments if not turned else steps.send("turned").arguments)
        turned.append(steps.send(f"dial {len(turned) + 1} shows {sign}").arguments["command"].split()[-1])
    return turned


async def test_the_dials_of_a_task_show_different_words(source: Source) -> None:
    _, tasks = first(source, 300)
    assert all(len(set(task.files["signs"].split())) == 3 for task in tasks)


async def test_a_misleading_answer_ends_the_demonstration(source: Source) -> None:
    steps = demonstrate({}, random.Random(0), 0.0)
    next(steps)
    with pytest.raises(StopIteration):
        steps.send("sh: look.sh: no such file")


async def test_train_and_heldout_share_no_task(source: Source) -> None:
    bash, train = first(source, 600, heldout_tasks=64, train_tasks=600)
    seen = {(task.instruction, task.files["signs"]) for task in train}
    held_out = {(task.instruction, task.files["signs"]) for task in bash.tasks("heldout")}
    assert len(seen) == 600
    assert len(held_out) == 64
    assert not seen & held_out
