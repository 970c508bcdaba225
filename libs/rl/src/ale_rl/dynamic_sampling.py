"""Dynamic sampling (as in DAPO) replaces tasks whose rollouts all got the same reward, because comparing them teaches
nothing; so the batch stays full. Replaced rollouts stay in the run's store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

from ale.task import Task
from ale.trajectory import Trajectory

RollOut = Callable[[Sequence[Task]], Awaitable[list[Trajectory]]]


def even_groups(trajectories: Sequence[Trajectory]) -> set[str]:
    """Return the groups whose rewards are all equal, those of steps too."""
    rewards: dict[str, set[tuple[float, ...]]] = {}
    for t in trajectories:
        if t.reward is not None:
            rewards.setdefault(t.group, set()).add((t.reward.value, *t.reward.by_chunk))
    return {group for group, values in rewards.items() if len(values) == 1}


async def replace_even_groups(
    rolled_out: list[Trajectory], tasks: Iterator[Task], roll_out: RollOut, most: int
) -> tuple[list[Trajectory], dict[str, float]]:
    """Replace at most `most` even groups of a step by groups of the next tasks; return the rollouts and metrics.

    `even_groups` is the number of even groups in the step, `replaced_groups` the number of those that were replaced.
    Even groups stay in the batch when the next task was already tried in this step, or when `most` is used up. A
    task without any trusted rollout replaces no group."""
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
