"""Demonstrations, really executed: right ones pass, some of those with a wrong turn fail.

`pytest plugins/tasks_bash/tests/test_demonstrations.py -k table -s` prints lengths and pass rates by family.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ale.messages import Message
from ale.task import Task
from ale_bash import BashTasks
from ale_bash.families import FAMILIES

pytestmark = pytest.mark.asyncio(loop_scope="module")
Source = Callable[..., BashTasks]
TASKS, SEEDS = 15, 2
AT_ONCE = 8


async def play_all(playground: Any, bash: BashTasks, tasks: Sequence[Task], seeds: Sequence[int]) -> list[Any]:
    """Every task with every demonstrator seed, some at once."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(task: Task, seed: int) -> Any:
        responder = bash.demonstrator(task, seed)
        assert responder is not None
        async with slots:
            return await playground.play(task, responder)

    return await asyncio.gather(*(one(task, seed) for task in tasks for seed in seeds))


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_demonstration_without_wrong_turns_passes(playground: Any, source: Source, family: str) -> None:
    bash = source(families=(family,), wrong_turn_rate=0, train_tasks=TASKS)
    for played in await play_all(playground, bash, list(bash.tasks("train")), range(SEEDS)):
        assert played.passed, played.text()
        assert played.finished
        assert 2 <= played.turns <= 6, played.text()


@pytest.mark.parametrize("family", FAMILIES)
async def test_some_demonstrations_with_wrong_turns_fail_and_some_recover(
    playground: Any, source: Source, family: str
) -> None:
    bash = source(families=(family,), wrong_turn_rate=1, train_tasks=12)
    all_played = await play_all(playground, bash, list(bash.tasks("train")), range(1))
    assert all(p.finished for p in all_played)
    assert {p.passed for p in all_played} == {True, False}
    assert any("[exit code" in p.text() or "No such file" in p.text() for p in all_played)


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_untouched_folder_fails_and_the_solution_passes(playground: Any, source: Source, family: str) -> None:
    for task in source(families=(family,), train_tasks=3).tasks("train"):
        assert task.solution is not None
        assert not await playground.passes(task)
        assert await playground.passes(task, task.solution)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ("write", "rename", "repair")])
async def test_empty_or_copied_outputs_do_not_pass(playground: Any, source: Source, family: str) -> None:
    for task in source(families=(family,), train_tasks=3).tasks("train"):
        assert not await playground.passes(task, "touch out.txt ans.txt res.txt")
        assert not await playground.passes(task, "cat * > /tmp/all; for f in out ans res; do cp /tmp/all $f.txt; done")


async def test_a_rewritten_check_does_not_repair_the_configuration(playground: Any, source: Source) -> None:
    for task in source(families=("repair",), train_tasks=3).tasks("train"):
        assert not await playground.passes(task, "echo echo ok > check.sh; sh check.sh")


async def test_a_finished_demonstrator_hands_over(source: Source) -> None:
    bash = source(families=("write",), wrong_turn_rate=0)
    responder = bash.demonstrator(next(iter(bash.tasks("train"))), 0)
    assert responder is not None
    replies = [await responder([Message("tool", "(no output)")], ()) for _ in range(3)]
    assert [r and r.message.tool_calls[0].name for r in replies][1:] == ["finish", None]


@pytest.mark.slow
async def test_a_table_of_the_demonstrations(playground: Any, source: Source) -> None:
    print(f"\n{'family':10}{'turns':>7}{'chars':>7}{'longest':>9}{'passed':>8}")
    for family in FAMILIES:
        bash = source(families=(family,), train_tasks=12)
        played = await play_all(playground, bash, list(bash.tasks("train")), range(1))
        turns, chars = (sum(getattr(p, what) for p in played) / len(played) for what in ("turns", "characters"))
        rate, longest = sum(p.passed for p in played) / len(played), max(p.turns for p in played)
        print(f"{family:10}{turns:7.2f}{chars:7.0f}{longest:9d}{rate:8.2f}")
        assert rate >= 0.5, "by default few demonstrations go wrong"
