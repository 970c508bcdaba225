"""Read finished runs as series of (step, value):

STAGE/METRIC     every metric of the stages `rl` and `eval`, such as `eval/success`
rl/start_chunk   how many chunks of an expert were replayed, mean over the step's rollouts
eval/minimum     the success of the task that does worst in an evaluation
PROBE/success    of the probes of an arm's checkpoints
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from ale.store.run_store import SUMMARY_NAME, RunStore
from ale_lab.experiment import Arm, Curve, Experiment, Series
from ale_lab.run_plan import Plan

STAGES = ("rl", "eval")
FORK = "crucial_fork"


def read_arm(plan: Plan, experiment: Experiment, arm: Arm, seed: int) -> Series:
    """The series of an arm's run and of its probes."""
    series = read_run(plan.folder(experiment, arm, seed))
    if experiment.probe is not None:
        probe = experiment.probe
        made = [(step, run.folder) for step, run in plan.probes(experiment, probe, arm, seed)]
        series[f"{probe.name}/success"] = [(step, read_run(folder)["eval/success"][-1][1]) for step, folder in made]
    return series


def read_run(folder: Path) -> Series:
    """The series of one run folder."""
    series: Series = {}
    with RunStore.open(folder) as store:
        for stage in STAGES:
            for name, points in store.metrics(stage).items():
                kept = [(float(step), value) for step, value in points if math.isfinite(value)]
                if kept:
                    series[f"{stage}/{name}"] = kept
        kept_ones = "stage = ? AND rejected IS NULL"
        starts = ((t.step, float(t.start_chunk)) for t in store.trajectories(kept_ones, ("rl",)))
        series["rl/start_chunk"] = mean_by_step(starts)
        # The algorithm finds a fork when it plans the step after.
        forks = {float(data["step"]) - 1 for _, kind, data in store.events() if kind == FORK}
        series["rl/fork"] = [(step, value) for step, value in series.get("rl/success", ()) if step in forks]
        tried: dict[int, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
        for t in store.trajectories(kept_ones, ("eval",)):
            tried[t.step][t.task_id].append(t.passed)
        series["eval/minimum"] = [
            (float(s), min(fmean(v) for v in tasks.values())) for s, tasks in sorted(tried.items())
        ]
    return series


def read_cost(folder: Path) -> tuple[float, float]:
    """Seconds that a run took, and the rollouts that it made."""
    summary = json.loads((folder / SUMMARY_NAME).read_text())
    return float(summary["seconds"]["total"]), float(summary["rollouts"])


def mean_by_step(points: Iterable[tuple[int, float]]) -> Curve:
    """The mean of all values of a step, by step."""
    values: dict[int, list[float]] = defaultdict(list)
    for step, value in points:
        values[step].append(value)
    return [(float(step), fmean(values[step])) for step in sorted(values)]
