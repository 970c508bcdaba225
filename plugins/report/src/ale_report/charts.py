"""Defines the charts of the report and the numbers that they show.

A chart is a title, axes and series; the page's script draws it. A series names a metric of a stage, whose numbers
the page holds once in `MetricTable`s, or carries points of its own. Charts without numbers are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ale_report.facts import (
    BEFORE_SFT_STEP,
    CPT_STAGE,
    EVAL_STAGE,
    RL_STAGE,
    SFT_STAGE,
    Evaluation,
    Metrics,
    RunFacts,
)
from ale_report.page_json import show_controls

Format = Literal["number", "share", "seconds"]
MAX_POINTS = 600
FAMILY_PREFIX = "success/"


@dataclass(frozen=True, slots=True)
class MetricTable:
    """The metrics of a stage in columns; one value a step, None where there is none.

    `every` is greater than 1 where only every n-th step is kept.
    """

    steps: tuple[int, ...]
    values: dict[str, tuple[float | None, ...]]
    every: int = 1


@dataclass(frozen=True, slots=True)
class Point:
    """A point with a name and an interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """A line: a metric of a stage, or points."""

    label: str
    stage: str = ""
    metric: str = ""
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class LineChart:
    """A chart over steps. `zero` makes its vertical axis begin at 0; `ticks` names places of the horizontal one."""

    id: str
    section: str
    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    format: Format = "number"
    note: str = ""
    zero: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A named group of bars, one value a series; None where there is none."""

    label: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class BarChart:
    """Horizontal bars."""

    id: str
    section: str
    title: str
    x: str
    series: tuple[str, ...]
    bars: tuple[Bar, ...]
    format: Format = "number"
    note: str = ""


Chart = LineChart | BarChart
OUTCOME, PRE_TRAINING = "Outcome", "Continual pre-training"
WARM_START, TRAINING = "Supervised warm start", "Reinforcement learning"
_SECTIONS = {
    CPT_STAGE: (PRE_TRAINING, "CPT step"),
    SFT_STAGE: (WARM_START, "SFT step"),
    RL_STAGE: (TRAINING, "RL step"),
}
"""Stage -> its section of the page, and what its steps are called."""

_STAGE_CHARTS: tuple[tuple[str, str, str, Format, bool, tuple[tuple[str, str], ...]], ...] = (
    (CPT_STAGE, "Loss", "nats per token", "number", False, (("loss", "loss"),)),
    (CPT_STAGE, "Gradient norm", "norm before clipping", "number", True, (("grad_norm", "gradient norm"),)),
    (CPT_STAGE, "Weight decay", "per update", "number", True, (("weight_decay", "weight decay"),)),
    (SFT_STAGE, "Loss", "per update", "number", False, (("loss", "loss"),)),
    (
        SFT_STAGE,
        "Turns without loss",
        "share of turns",
        "share",
        True,
        (("masked_error", "errors"), ("masked_task", "other sub-tasks, repetitions")),
    ),
    (SFT_STAGE, "Entropy", "nats per token", "number", True, (("entropy", "entropy"),)),
    (SFT_STAGE, "Gradient norm", "norm before clipping", "number", True, (("grad_norm", "gradient norm"),)),
    (RL_STAGE, "Training reward", "mean reward", "number", True, (("reward", "reward"),)),
    (RL_STAGE, "Loss", "per update", "number", False, (("loss", "loss"),)),
    (RL_STAGE, "Entropy", "nats per token", "number", True, (("entropy", "entropy"),)),
    (RL_STAGE, "Gradient norm", "norm before clipping", "number", True, (("grad_norm", "gradient norm"),)),
    (RL_STAGE, "Chunks per rollout", "mean", "number", True, (("chunks", "chunks"),)),
    (
        RL_STAGE,
        "Agent errors",
        "share of chunks",
        "share",
        True,
        (("illegal_calls", "illegal calls"), ("failed_executions", "failed executions")),
    ),
    (
        RL_STAGE,
        "Importance ratio",
        "new / old probability",
        "number",
        True,
        (("ratio", "mean"), ("ratio_std", "standard deviation")),
    ),
    (
        RL_STAGE,
        "Divergence",
        "nats per token",
        "number",
        True,
        (("kl_old", "from the policy that sampled"), ("kl_ref", "from the reference")),
    ),
    (
        RL_STAGE,
        "Left out of the gradient",
        "share",
        "share",
        True,
        (("masked", "masked tokens"), ("masked_chunks", "masked chunks"), ("clipped", "clipped tokens")),
    ),
    (RL_STAGE, "Rejected rollouts", "share of those made", "share", True, (("rejected", "rejected"),)),
    (
        RL_STAGE,
        "Sampled again",
        "a step",
        "number",
        True,
        (("resampled", "rollouts"), ("unfilled", "requests that yielded nothing"), ("replaced_groups", "even groups")),
    ),
    (
        RL_STAGE,
        "Wait for a sandbox",
        "of the latest requests",
        "seconds",
        True,
        (("pool/wait_s_p50", "median"), ("pool/wait_s_p95", "95th percentile")),
    ),
    (RL_STAGE, "Time per step", "", "seconds", True, (("rollout_s", "rollouts"), ("train_s", "training"))),
)


def metric_tables(metrics: Metrics) -> dict[str, MetricTable]:
    """The metrics by stage, thinned out where a stage has more than `MAX_POINTS` steps."""
    tables = {}
    for stage, named in metrics.items():
        steps = sorted({step for points in named.values() for step, _ in points})
        every = max(1, math.ceil(len(steps) / MAX_POINTS))
        # Counted from the newest step, which is always kept.
        kept = tuple(steps[::-every][::-1])
        columns = {name: dict(points) for name, points in named.items()}
        tables[stage] = MetricTable(
            kept, {name: tuple(column.get(step) for step in kept) for name, column in columns.items()}, every
        )
    return tables


def charts(facts: RunFacts, metrics: Metrics) -> list[Chart]:
    """Every chart that has numbers, in the order of the page."""
    candidates = [
        success_chart(facts, metrics),
        family_chart(facts, metrics),
        time_chart(facts),
        rejection_chart(facts),
    ]
    out: list[Chart] = [chart for chart in candidates if chart is not None]
    for stage, title, unit, form, zero, names in _STAGE_CHARTS:
        series = tuple(Series(label, stage, name) for name, label in names if metrics.get(stage, {}).get(name))
        if series:
            section, step = _SECTIONS[stage]
            out.append(LineChart(f"{stage}-{names[0][0]}", section, title, step, unit, series, form, zero=zero))
    return out


def success_chart(facts: RunFacts, metrics: Metrics) -> LineChart | None:
    """Held-out success with its interval, and the success of the training rollouts."""
    training = metrics.get(RL_STAGE, {}).get("success", [])
    last = max([step for step, _ in training] + [e.step for e in facts.evaluations], default=0)
    # The evaluation before SFT is drawn one step before zero, on a long axis further away, so that both can be seen.
    before = -max(1.0, 0.12 * last)
    places = {e.step: before if e.step == BEFORE_SFT_STEP else float(e.step) for e in facts.evaluations}
    heldout = tuple(Point(places[e.step], e.success, e.low, e.high, e.label) for e in facts.evaluations)
    series = []
    if heldout:
        series.append(Series("held-out", points=heldout))
    if training:
        series.append(Series("training rollouts", RL_STAGE, "success"))
    if not series:
        return None
    ticks = tuple((places[e.step], e.label) for e in facts.evaluations if e.step <= 0)
    note = "Band: 95 % Wilson interval of the held-out rate. Held-out episodes always start at the beginning of a task."
    return LineChart(
        "success", OUTCOME, "Success", "RL step", "tasks solved", tuple(series), "share", note, True, ticks, wide=True
    )


def family_chart(facts: RunFacts, metrics: Metrics) -> BarChart | None:
    """Held-out success by the first tag of the task: before training and in the newest round."""
    found = metrics.get(EVAL_STAGE, {})
    rounds = _before_and_after(facts.evaluations)
    families = {
        name.removeprefix(FAMILY_PREFIX): dict(v) for name, v in found.items() if name.startswith(FAMILY_PREFIX)
    }
    if not rounds or not families:
        return None
    bars = tuple(Bar(name, tuple(v.get(e.step) for e in rounds)) for name, v in sorted(families.items()))
    return BarChart(
        "families",
        OUTCOME,
        "Success by task family",
        "held-out",
        tuple(e.label for e in rounds),
        bars,
        "share",
    )


def rejection_chart(facts: RunFacts) -> BarChart | None:
    """The reasons for which rollouts were rejected, the most frequent first."""
    bars = tuple(Bar(show_controls(reason), (float(count),)) for reason, count in facts.rejections.items())
    what = "Why rollouts were rejected"
    return BarChart("rejections", OUTCOME, what, "rollouts of the whole run", ("rollouts",), bars) if bars else None


def time_chart(facts: RunFacts) -> BarChart | None:
    """How many seconds each stage took."""
    seconds = dict(facts.stage_seconds)
    if facts.seconds is not None and seconds and (rest := facts.seconds - sum(seconds.values())) > 0.01 * facts.seconds:
        seconds["everything else"] = rest
    if not seconds:
        return None
    bars = tuple(Bar(name, (value,)) for name, value in seconds.items())
    note = "" if facts.seconds is not None else "So far, of the RL steps that are done."
    return BarChart("time", OUTCOME, "Time by stage", "", ("seconds",), bars, "seconds", note)


def _before_and_after(rounds: tuple[Evaluation, ...]) -> tuple[Evaluation, ...]:
    if len(rounds) < 2:
        return rounds
    later = [e for e in rounds[:-1] if e.step >= 0]
    return (later[0] if later else rounds[0], rounds[-1])
