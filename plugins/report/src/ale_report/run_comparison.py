"""Runs side by side: the newest evaluation of each, and how much better or worse it did than the first, task by task.

Two runs that worked on the same tasks are compared by the differences on each task (`ale_train.evaluation.estimates`):
how hard a task is cancels out, so that the interval of the difference is narrower than those of the two runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ale.errors import ConfigError
from ale.store.run_store import RunStore
from ale.trajectory import Trajectory
from ale_report.run_facts import EVAL_STAGE, RL_STAGE, Metrics, RunFacts, eval_stages, read_facts, read_metrics
from ale_train.evaluation.estimates import Estimate, estimate_difference
from ale_train.evaluation.metrics import Figures, measure, reward_of

ByTask = Mapping[str, Sequence[float]]
"""The values of a task's runs, by the task's id."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The newest evaluation of a set: its figures, and passes and rewards by task."""

    step: int
    figures: Figures
    passed: ByTask
    rewards: ByTask


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run with the newest evaluation of each of its sets; the set of a run without named ones is ``."""

    name: str
    facts: RunFacts
    metrics: Metrics
    sets: Mapping[str, Judged]

    @property
    def steps(self) -> int:
        """Return how many steps of reinforcement learning it made."""
        return max((step for points in self.metrics.get(RL_STAGE, {}).values() for step, _ in points), default=0)


@dataclass(frozen=True, slots=True)
class Difference:
    """A run less the first one, over the tasks that both have."""

    success: Estimate
    reward: Estimate
    tasks: int


def read_runs(folders: Sequence[Path]) -> list[ComparedRun]:
    """Read the runs to compare. Raises `ConfigError` for a folder without a run, or without an evaluation."""
    names = [folder.resolve().name for folder in folders]
    unique = [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]
    return [_read_run(folder, name) for folder, name in zip(folders, unique, strict=True)]


def _read_run(folder: Path, name: str) -> ComparedRun:
    with RunStore.open(folder) as store:
        metrics = read_metrics(store)
        facts = read_facts(store, metrics)
        sets = {}
        for stage in eval_stages(metrics):
            step = max(step for points in metrics[stage].values() for step, _ in points)
            done = list(store.trajectories("stage = ? AND step = ? AND rejected IS NULL", (stage, step)))
            if done:  # the stage `eval` of a run with named sets has their means alone
                sets[stage.partition(".")[2]] = _judge(done, step, metrics[stage])
    if not sets:
        raise ConfigError(
            f"{folder} has no evaluation to compare; `ale eval {folder}` makes one in a run folder of its "
            "own, which can be compared."
        )
    return ComparedRun(name, facts, metrics, sets)


def _judge(done: Sequence[Trajectory], step: int, metrics: Mapping[str, Sequence[tuple[int, float]]]) -> Judged:
    by_task: dict[str, list[Trajectory]] = defaultdict(list)
    for t in done:
        by_task[t.task_id].append(t)
    figures = measure(done, min(map(len, by_task.values())))
    figures |= {name: value for name, points in metrics.items() for at, value in points if at == step}
    return Judged(
        step,
        figures,
        {task: [float(t.passed) for t in of] for task, of in by_task.items()},
        {task: [reward_of(t) for t in of] for task, of in by_task.items()},
    )


def compare(first: Judged, other: Judged) -> Difference | None:
    """Return how much better the other did, over the tasks that both have; None if they share none."""
    success = estimate_difference(first.passed, other.passed)
    reward = estimate_difference(first.rewards, other.rewards)
    if success is None or reward is None:
        return None
    found = success[0]
    if found.low is not None and found.high is not None:  # a difference of shares is between -1 and 1
        found = Estimate(found.value, max(-1.0, found.low), min(1.0, found.high))
    return Difference(found, reward[0], success[1])


def shared_sets(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the sets that every run has, in the order of the first. Raises `ConfigError` if there are none."""
    found = [name for name in runs[0].sets if all(name in run.sets for run in runs)]
    if not found:
        listed = "; ".join(f"{run.name}: {', '.join(name or 'no named set' for name in run.sets)}" for run in runs)
        raise ConfigError(
            f"The runs have no evaluation set in common ({listed}); `ale eval RUN --set NAME` evaluates one."
        )
    return found


def table(runs: Sequence[ComparedRun], name: str) -> list[tuple[str, ...]]:
    """Return the comparison on an evaluation set: the heads, then a row for each run."""
    judged = [run.sets[name] for run in runs]
    most = max((k for k in _ks(judged[0].figures) if all(f"pass@{k}" in j.figures for j in judged)), default=1)
    several = [f"pass@{most}", f"pass^{most}"] if most > 1 else []
    heads = ("RUN", "STEP", "SUCCESS", "MEAN REWARD", *(head.upper() for head in several))
    rows: list[tuple[str, ...]] = [(*heads, "SUCCESS DIFFERENCE", "REWARD DIFFERENCE", "RL STEPS", "SECONDS", "TOKENS")]
    for run, of in zip(runs, judged, strict=True):
        difference = compare(judged[0], of) if run is not runs[0] else None
        differences = ("", "") if run is runs[0] else _differences(difference)
        figures = (_figure(of.figures, figure) for figure in ("success", "reward", *several))
        seconds = "-" if run.facts.seconds is None else f"{run.facts.seconds:,.0f}"
        tokens = f"{run.facts.sampled_tokens:,}"
        rows.append((run.name, str(of.step), *figures, *differences, str(run.steps), seconds, tokens))
    return rows


def _ks(figures: Iterable[str]) -> list[int]:
    return [int(name[5:]) for name in figures if name.startswith("pass@") and name[5:].isdecimal()]


def _figure(figures: Figures, name: str) -> str:
    return _estimate(Estimate(figures[name], figures.get(f"{name}_low"), figures.get(f"{name}_high")))


def _differences(found: Difference | None) -> tuple[str, str]:
    if found is None:
        return "no task in common", ""
    tasks = f" ({found.tasks} task{'s' if found.tasks > 1 else ''})"
    return _estimate(found.success, "+") + tasks, _estimate(found.reward, "+")


def _estimate(found: Estimate, sign: str = "") -> str:
    interval = "" if found.low is None else f" [{found.low:{sign}.3f}, {found.high:{sign}.3f}]"
    return f"{found.value:{sign}.3f}{interval}"


def curve(run: ComparedRun, stage: str, name: str) -> list[tuple[int, float, float | None, float | None]]:
    """Return a metric of a run with its interval: step, value, low, high."""
    found = run.metrics.get(stage, {})
    low, high = (dict(found.get(f"{name}_{bound}", [])) for bound in ("low", "high"))
    points = found.get(name, [])
    if stage == EVAL_STAGE and name == "success" and not low:  # a run of an earlier version
        low = {e.step: e.low for e in run.facts.evaluations if e.low is not None}
        high = {e.step: e.high for e in run.facts.evaluations if e.high is not None}
    return [(step, value, low.get(step), high.get(step)) for step, value in points]
