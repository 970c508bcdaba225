"""Dynamic sampling (as in DAPO): a task whose rollouts all got the same reward teaches nothing by comparison; another takes
its place, so that the batch stays full. What was replaced stays in the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ale.errors import ConfigError
from ale.task import Task
from ale.trajectory import Trajectory

if TYPE_CHECKING:
    from ale.specs.algorithm import Algorithm

RollOut = Callable[[Sequence[Task]], Awaitable[list[Trajectory]]]


def check_groups(algorithm: Algorithm, most: int) -> None:
    """Raises `ConfigError` where every group would be even."""
    if most and algorithm.group_size < 2:
        raise ConfigError(
            "rl.resample_even_groups: with algorithm.group_size=1 the rewards of every group are alike; set a group_size of "
            "2 or more, or leave rl.resample_even_groups out."
        )


def even_groups(trajectories: Sequence[Trajectory]) -> set[str]:
    """The groups whose rewards are all alike."""
    rewards: dict[str, set[float]] = {}
    for t in trajectories:
        if t.reward is not None:
            rewards.setdefault(t.group, set()).add(t.reward.value)
    return {group for group, values in rewards.items() if len(values) == 1}


async def with_spread(
    rolled_out: list[Trajectory], tasks: Iterator[Task], roll_out: RollOut, most: int
) -> tuple[list[Trajectory], dict[str, float]]:
    """The rollouts of a step, at most `most` even groups replaced by those of the next tasks; and the metrics of that.

    `even_groups`: how many groups without spread the step met. `replaced_groups`: how many of them gave way. Even groups
    are left in the batch when the tasks come round to one that this step has tried, or when `most` is used up; a task of
    which no rollout can be trusted takes nobody's place.
    """
    tried = {t.task_id for t in rolled_out}
    met, asked, replaced = len(even_groups(rolled_out)), 0, 0
    while even := even_groups(rolled_out):
        chosen: list[Task] = []
        while len(chosen) < min(len(even), most - asked):
            task = next(tasks)
            if task.id in tried:
                break
            tried.add(task.id)
            chosen.append(task)
        if not chosen:
            break
        more = await roll_out(chosen)
        came = len({t.task_id for t in more})
        out = set(sorted(even)[:came])
        rolled_out = [t for t in rolled_out if t.group not in out] + more
        asked, replaced = asked + len(chosen), replaced + came
        met += len(even_groups(more))
    return rolled_out, {"even_groups": float(met), "replaced_groups": float(replaced)}
