"""Dynamic sampling: groups that teach nothing give way to others, as far as that goes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ale.task import Task, TaskTests
from ale.trajectory import Score, Trajectory
from ale_rl.dynamic_sampling import even_groups, replace_even_groups


def task(number: int) -> Task:
    return Task(id=f"t{number}", instruction="", tests=TaskTests(command="true"))


def group(number: int, *rewards: float) -> list[Trajectory]:
    return [
        Trajectory(
            f"t{number}.{i}",
            f"t{number}",
            "train",
            "rl",
            1,
            f"1.{number}",
            i,
            0,
            (),
            (),
            reward=Score(reward, reward > 0),
        )
        for i, reward in enumerate(rewards)
    ]


@given(st.dictionaries(st.integers(0, 9), st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=4)))
def test_even_groups_are_those_whose_rewards_are_all_alike(rewards: dict[int, list[float]]) -> None:
    made = [t for number, values in rewards.items() for t in group(number, *values)]
    assert even_groups(made) == {f"1.{n}" for n, values in rewards.items() if all(v == values[0] for v in values)}


def test_a_rollout_without_a_reward_makes_no_group() -> None:
    assert even_groups([replace(t, reward=None) for t in group(1, 1.0, 1.0)]) == set()


async def run(
    spread: dict[int, bool | None], first: int, most: int, limit: int = 99
) -> tuple[list[str], dict[str, float], list[list[str]]]:
    """Tasks whose groups have a spread or not, or of which no rollout can be trusted (None); the first so many are
    rolled out."""
    asked: list[list[str]] = []

    async def roll_out(tasks: Sequence[Task]) -> list[Trajectory]:
        asked.append([t.id for t in tasks])
        return [t for one in tasks for t in made(int(one.id[1:]))]

    def made(number: int) -> list[Trajectory]:
        return [] if spread[number] is None else group(number, 1.0, 0.0 if spread[number] else 1.0)

    tasks = itertools.islice(itertools.cycle(map(task, spread)), first, limit)
    begun = [t for number in list(spread)[:first] for t in made(number)]
    done, metrics = await replace_even_groups(begun, tasks, roll_out, most)
    return sorted({t.task_id for t in done}), metrics, asked


async def test_even_groups_give_way_to_the_next_tasks_until_the_batch_is_full() -> None:
    done, metrics, asked = await run({0: True, 1: False, 2: False, 3: True, 4: False, 5: True, 6: True}, 3, most=9)
    assert done == ["t0", "t3", "t5"]
    assert asked == [["t3", "t4"], ["t5"]]
    assert metrics == {"even_groups": 3.0, "replaced_groups": 3.0}


async def test_no_more_than_so_many_are_replaced() -> None:
    done, metrics, asked = await run({n: False for n in range(9)}, 3, most=4)
    assert (len(done), asked) == (3, [["t3", "t4", "t5"], ["t6"]])
    assert metrics == {"even_groups": 7.0, "replaced_groups": 4.0}


async def test_a_task_that_cannot_be_trusted_takes_nobodys_place() -> None:
    done, metrics, asked = await run({0: True, 1: False, 2: None, 3: None, 4: True}, 2, most=2)
    assert (done, asked) == (["t0", "t1"], [["t2"], ["t3"]])
    assert metrics == {"even_groups": 1.0, "replaced_groups": 0.0}


async def test_nothing_is_replaced_by_default() -> None:
    done, metrics, asked = await run({0: False, 1: True, 2: True}, 2, most=0)
    assert (done, asked) == (["t0", "t1"], [])
    assert metrics == {"even_groups": 1.0, "replaced_groups": 0.0}


async def test_a_task_is_not_tried_twice_in_a_step() -> None:
    done, metrics, asked = await run({0: False, 1: False, 2: False}, 2, most=9)
    assert (done, asked) == (["t1", "t2"], [["t2"]])
    assert metrics == {"even_groups": 3.0, "replaced_groups": 1.0}
