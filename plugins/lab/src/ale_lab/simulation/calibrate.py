"""Fits the simulator to a real run: every second step gives episodes and speeds, the steps between are predicted.

Steps alternate because a policy that learns makes other episodes at the end than at the beginning.

1. An episode is taken as it was: its start, the tokens of each turn, the seconds of each tool, its reward. A step that
   is predicted draws those of the steps beside it, of about the same place in their step.
2. The seconds a token of the engine are a curve over b, how many turns were sampled meanwhile on average: turns are
   sorted by b and put into twelve parts of equal size, each of which gives a point. A line would be too slow where few
   turns are left, the long ones, for which a synchronous step waits.
3. The fixed and the proportional seconds of the update are fitted by least squares, none below 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import yaml

from ale.errors import ConfigError
from ale.store.run_store import RunStore
from ale.trajectory import Trajectory
from ale_lab.simulation.engine import EngineSpeed
from ale_lab.simulation.loop import Machines, Simulation, TrainerSpeed
from ale_lab.simulation.workload import Episode, Measured

STARTS = ("build", "prepare", "state", "start")
LEAST_STEPS = 8
POINTS, LEAST_CALLS = 12, 10


@dataclass(frozen=True, slots=True)
class Prediction:
    """The mean seconds of every second step of a run: simulated, and as they were."""

    simulated_s: float
    measured_s: float
    steps: int

    @property
    def error(self) -> float:
        """The simulated seconds over the measured ones, less 1."""
        return self.simulated_s / self.measured_s - 1


def predict(folder: Path, repeats: int = 8) -> Prediction:
    """Calibrate on every second step of a run and predict the others. Raises `ConfigError` if it has too few."""
    with RunStore.open(folder) as store:
        metrics = {name: dict(points) for name, points in store.metrics("rl").items()}
        trajectories = list(store.trajectories("stage = 'rl' AND rejected IS NULL"))
        config = yaml.safe_load(store.meta("config") or "{}")
    steps = sorted(metrics.get("trainer/update_s", ()))
    if len(steps) < LEAST_STEPS:
        raise ConfigError(f"{folder} has {len(steps)} steps with the states of its trainer; {LEAST_STEPS} are needed.")
    half, rest = steps[1::2], steps[2::2]  # the first one includes what happens once
    first = [t for t in trajectories if t.step in half]
    states = ("wait_data", "logprobs", "update", "publish", "save")
    measured = fmean(sum(metrics[f"trainer/{state}_s"][step] for state in states) for step in rest)
    rl = config["rl"]
    tokens = [metrics["sampled_tokens"][step] for step in half]
    update = _line(tokens, [metrics["trainer/update_s"][step] for step in half])
    logprobs = fmean(metrics["trainer/logprobs_s"][step] for step in half)
    share = logprobs / fmean(metrics["trainer/update_s"][step] for step in half)
    publish = fmean(metrics["trainer/publish_s"][step] + metrics["trainer/save_s"][step] for step in half)
    groups = {(t.step, t.group) for t in first}
    first.sort(key=lambda t: t.started_at)
    by_step = {step - 1: [episode(t) for t in first if t.step == step] for step in half}
    simulation = partial(
        Simulation,
        workload=Measured(rl["prompts_per_step"], round(len(first) / len(groups)), by_step),
        machines=Machines(
            engines=1,
            lent=0,
            speed=engine_speed(first),
            publish_s=publish,
            switch_s=0.0,
            concurrency=config["rollout"]["concurrency"],
        ),
        trainer=TrainerSpeed(*update, share),
        steps_wanted=len(steps),
        async_ratio=rl.get("async_ratio", 0),
        ahead=rl.get("ahead"),
    )
    runs = [simulation(seed=seed).run() for seed in range(repeats)]
    ends = [[0.0, *(step.end for step in run)] for run in runs]
    simulated = fmean(end[step] - end[step - 1] for end in ends for step in rest)
    return Prediction(simulated, measured, len(rest))


def episode(t: Trajectory) -> Episode:
    """Return what a rollout did."""
    took = dict(t.timings)
    start = sum(took.get(name, 0.0) for name in STARTS)
    ends = [c.called_at + c.seconds for c in t.chunks]
    begins = [c.called_at for c in t.chunks]
    over = t.started_at + start + took.get("act", 0.0)
    tools = [max(0.0, begun - ended) for begun, ended in zip([*begins[1:], over], ends, strict=True)]
    first = max(0.0, begins[0] - t.started_at) if begins else start
    turns = [(float(max(1, len(c))), tool) for c, tool in zip(t.chunks, tools, strict=True)]
    left = max(0.0, t.started_at + t.seconds - over)
    prompt = float(t.chunks[0].start) if t.chunks else 0.0
    return Episode(first, turns, left, prompt, 0.0)


def engine_speed(trajectories: Sequence[Trajectory]) -> EngineSpeed:
    """Return the engine's speed from the turns of rollouts; prompts and KV are part of it."""
    calls = [(c.called_at, c.called_at + c.seconds, len(c)) for t in trajectories for c in t.chunks if len(c)]
    times = np.array(sorted([(began, 1) for began, _, _ in calls] + [(ended, -1) for _, ended, _ in calls]))
    at, count = times[:, 0], np.cumsum(times[:, 1])
    # The area under the number of turns, so that a mean over any span is a difference of two values.
    area = np.concatenate([[0.0], np.cumsum(count[:-1] * np.diff(at))])
    began, ended, tokens = (np.array(column, dtype=float) for column in zip(*calls, strict=True))
    meanwhile = (np.interp(ended, at, area) - np.interp(began, at, area)) / np.maximum(1e-9, ended - began)
    order = np.argsort(meanwhile, kind="stable")
    points = [
        (float(meanwhile[some].mean()), float((ended - began)[some].sum() / tokens[some].sum()))
        for some in np.array_split(order, max(1, min(POINTS, len(order) // LEAST_CALLS)))
    ]
    return EngineSpeed(
        c0=0.0, c1=0.0, c2=0.0, prefill_tokens_s=math.inf, kv_tokens=math.inf, most=1 << 30, curve=tuple(points)
    )


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    return _non_negative(np.stack([np.ones(len(x)), np.array(x)], 1), np.array(y))


def _non_negative(columns: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Return the least-squares weights of two columns, none below 0."""
    both = np.linalg.lstsq(columns, values, rcond=None)[0]
    if both.min() >= 0:
        return float(both[0]), float(both[1])
    alone = [max(0.0, float(c @ values / (c @ c))) for c in columns.T]
    errors = [float(np.square(values - columns[:, i] * alone[i]).sum()) for i in (0, 1)]
    return (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])
