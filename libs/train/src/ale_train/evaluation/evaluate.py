"""One evaluation: the policy as it is now works on held-out tasks, each from its beginning.

1. Each evaluation set draws its tasks: the first of its split, in the source's order, so that every evaluation of every
   run has the same ones. Only the sampling depends on the run's seed.
2. The episodes run as rollouts do. A rejected one (after an infrastructure fault, for example) is made again; one whose
   last try is rejected too is left out of the figures, and counted.
3. The figures are stored as metrics of the stage `eval`, or `eval.<set>`, at a step of reinforcement learning.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from ale.errors import AleError, ConfigError
from ale.registry.drivers import open_driver
from ale.rollout.episode import StageInfo
from ale.rollout.scheduler import Rollouts
from ale.rollout.selection import carries
from ale.specs.algorithm import RolloutRequest
from ale.specs.tasks import TaskSource
from ale.task import Task
from ale_train.config.evaluation import EvaluationConfig, EvaluationSet
from ale_train.evaluation.describe import describe, in_words
from ale_train.evaluation.metrics import Figures, measure, sum_up
from ale_train.workbench.workbench import Workbench, read_tasks

EVAL_STAGE = "eval"
BEFORE_RL, AFTER_RL = "before_rl", "after_rl"
"""The labels of the evaluations before the first and after the last step of reinforcement learning."""
MOST_LOOKED_AT = 100_000
"""How many tasks of a split are searched for those with the right tags; a source may be endless."""


async def check_evaluation_tasks(bench: Workbench, config: EvaluationConfig) -> None:
    """Refuse a set without tasks. Raises `ConfigError`."""
    for name, chosen in config.chosen_sets().items():
        async with open_tasks(bench, name, chosen) as tasks:
            draw_tasks(tasks, name, chosen.model_copy(update={"episodes": 1, "n": None}))


async def evaluate_policy(bench: Workbench, label: str, step: int) -> None:
    """Evaluate the policy as it is now on all sets, if the run has evaluations; the figures are in the store and, under
    `label`, in `bench.evaluations`. Without a label, the run trains nothing, and the section `eval` names it.

    Raises `AleError` if no episode of a set could be run."""
    config = bench.config.eval
    if config is None:
        return
    label = label or config.label
    sets = config.chosen_sets()
    with bench.stopwatch("evaluation"):
        found = {name: await _evaluate_set(bench, name, chosen, label, step) for name, chosen in sets.items()}
    figures = found[""] if "" in found else sum_up(found)
    if "" not in found:
        bench.finish_step(EVAL_STAGE, step, figures)
    with_reasons = {name: _add_reasons(bench, name, of, step) for name, of in found.items()}
    whole = with_reasons[""] if "" in found else {**figures, "sets": with_reasons}
    bench.evaluations[label] = {**whole, "step": step}
    bench.progress.numbers(heldout=figures["success"])
    bench.progress.note("held-out success, " + "\n".join(describe(label, bench.evaluations[label])))


def _add_reasons(bench: Workbench, name: str, figures: Figures, step: int) -> dict[str, Any]:
    """Return the figures of a set, and why episodes of it were made again or given up, if some were."""
    reasons = bench.store.reasons(stage_of(name), step) if figures.get("resampled") or figures.get("unfilled") else ""
    return {**figures, **({"lost": reasons} if reasons else {})}


async def _evaluate_set(bench: Workbench, name: str, chosen: EvaluationSet, label: str, step: int) -> Figures:
    async with open_tasks(bench, name, chosen) as source:
        tasks = draw_tasks(source, name, chosen)
    words = f"{in_words(label)}{f', {name}' if name else ''}"
    bench.progress.stage(f"evaluation {words}", len(tasks))
    stage = stage_of(name)
    info = StageInfo(stage, step, chosen.split, temperature=chosen.temperature, top_p=chosen.top_p, top_k=chosen.top_k)
    runs = chosen.n or max(1, len(tasks) // len({task.id for task in tasks}))
    seed = bench.config.seed * 1_000_003 + 500_009
    # The runs of a task that `n` asks for share the plugins that are selected for it; repetitions each draw theirs.
    requests = [RolloutRequest(task, f"{stage}.{i // (chosen.n or 1)}", seed + i) for i, task in enumerate(tasks)]
    done = await _rollouts(bench, chosen).run(requests, info)
    if not done:
        raise AleError(
            f"No held-out episode could be run: {bench.store.reasons(stage, step)}. The trajectories of the run "
            "say more."
        )
    figures = measure(done, runs) | bench.rollouts.metrics(stage)
    bench.finish_step(stage, step, figures)
    return figures


def stage_of(name: str) -> str:
    """Return the stage under which the episodes and figures of a set are stored."""
    return f"{EVAL_STAGE}.{name}" if name else EVAL_STAGE


def _rollouts(bench: Workbench, chosen: EvaluationSet) -> Rollouts:
    """Return the run's rollouts with the set's own limit of tokens."""
    if chosen.max_tokens is None:
        return bench.rollouts
    episodes = bench.rollouts.episodes
    limited = episodes.config.model_copy(update={"max_tokens": chosen.max_tokens})
    return replace(bench.rollouts, episodes=replace(episodes, config=limited))


def draw_tasks(tasks: Iterable[Task], name: str, chosen: EvaluationSet) -> list[Task]:
    """Return the task of each episode of a set, in order. Raises `ConfigError` if no task has its tags."""
    fitting = (task for task in itertools.islice(tasks, MOST_LOOKED_AT) if carries(task.tags, chosen.tags))
    found = list(itertools.islice(fitting, chosen.episodes // (chosen.n or 1)))
    where = f"eval.sets.{name}" if name else "eval"
    if not found and chosen.tags:
        raise ConfigError(
            f"{where}.tags: the split '{chosen.split}' has no task with the tags {', '.join(chosen.tags)}; name "
            f"others, or another split with {where}.split."
        )
    if not found:
        source = f"{where}.tasks" if chosen.tasks is not None else "tasks"
        raise ConfigError(
            f"The task source has no tasks in its split '{chosen.split}': give it some with its settings in the "
            f"section {source} (`ale config describe tasks NAME` lists them), or name another split with {where}.split."
        )
    if chosen.n is None:
        return list(itertools.islice(itertools.cycle(found), chosen.episodes))
    return [task for task in found for _ in range(chosen.n)]


@asynccontextmanager
async def open_tasks(bench: Workbench, name: str, chosen: EvaluationSet) -> AsyncIterator[Iterator[Task]]:
    """Yield the tasks of a set's split: those of the run's source, or of one of its own, which is open meanwhile."""
    if chosen.tasks is None:
        yield bench.tasks_once(chosen.split)
        return
    path = f"eval.sets.{name}.tasks"
    async with AsyncExitStack() as stack:
        source = await open_driver(stack, "tasks", chosen.tasks, bench.context, path)
        bench.required.check_started(path, "tasks", source)
        assert isinstance(source, TaskSource), "the registry checks it"
        tasks = read_tasks(source, chosen.split, f"{path}: the task source '{chosen.tasks.use}'")
        yield bench.keep_fitting(chosen.split, tasks)
