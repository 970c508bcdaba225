"""Defines the charts of the report and the numbers that they show. Charts without numbers are left out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from ale_report.chart_types import OUTCOME, Bar, BarChart, Chart, Format, LineChart, Series
from ale_report.eval_charts import eval_charts
from ale_report.page_json import show_controls
from ale_report.run_facts import CPT_STAGE, RL_STAGE, SFT_STAGE, Metrics, RunFacts

MAX_POINTS = 600


@dataclass(frozen=True, slots=True)
class MetricTable:
    """The metrics of a stage in columns; one value a step, None where there is none.

    `every` is greater than 1 where only every n-th step is kept.
    """

    steps: tuple[int, ...]
    values: dict[str, tuple[float | None, ...]]
    every: int = 1


PRE_TRAINING = "Continual pre-training"
WARM_START, TRAINING = "Supervised warm start", "Reinforcement learning"
_SECTIONS = {
    CPT_STAGE: (PRE_TRAINING, "CPT step"),
    SFT_STAGE: (WARM_START, "SFT step"),
    RL_STAGE: (TRAINING, "RL step"),
}
"""Stage -> its section of the page, and what its steps are called."""

_MISMATCH_RANGES = (
    ("mismatch_place/", "Engine and trainer by place in the sequence", "mean difference in nats, by token"),
    ("mismatch_chunk/", "Engine and trainer by chunk", "mean difference in nats, by the chunk's number"),
)
"""The metrics, each named after its range, such as `0-127`; the title and the unit of their chart."""

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
    (
        RL_STAGE,
        "Engine and trainer: difference",
        "nats per token",
        "number",
        True,
        (("mismatch_mean", "mean"), ("mismatch_max", "largest"), ("mismatch_kl", "divergence")),
    ),
    (
        RL_STAGE,
        "Engine and trainer: ratio",
        "trainer's / engine's probability",
        "number",
        True,
        (
            ("mismatch_ratio_p01", "1st percentile"),
            ("mismatch_ratio_p50", "median"),
            ("mismatch_ratio_p99", "99th percentile"),
        ),
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
    (
        RL_STAGE,
        "Bubbles",
        "share of the step without work",
        "share",
        True,
        (("bubble/trainer", "trainer"), ("bubble/engine", "engine")),
    ),
    (
        RL_STAGE,
        "Staleness",
        "versions between sampling and training",
        "number",
        True,
        (("staleness", "mean"), ("staleness_p95", "95th percentile"), ("staleness_max", "largest")),
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
    out: list[Chart] = [*eval_charts(facts, metrics)]
    out += [chart for chart in (time_chart(facts), rejection_chart(facts)) if chart is not None]
    for stage, title, unit, form, zero, names in _STAGE_CHARTS:
        series = tuple(Series(label, stage, name) for name, label in names if metrics.get(stage, {}).get(name))
        if series:
            section, step = _SECTIONS[stage]
            out.append(
                LineChart(
                    id=f"{stage}-{names[0][0]}",
                    section=section,
                    title=title,
                    x=step,
                    y=unit,
                    series=series,
                    format=form,
                    zero=zero,
                )
            )
    return [*out, *mismatch_charts(metrics, TRAINING)]


def mismatch_charts(metrics: Metrics, section: str) -> Iterator[BarChart]:
    """Yield the charts of where engine and trainer differ, by the place of a token in its sequence and by chunk."""
    rl = metrics.get(RL_STAGE, {})
    for prefix, title, unit in _MISMATCH_RANGES:
        found = {name.removeprefix(prefix): points for name, points in rl.items() if name.startswith(prefix)}
        newest = max((step for points in found.values() for step, _ in points), default=0)
        bars = tuple(
            Bar(name.replace("-", " to "), (fmean(value for _, value in points), dict(points).get(newest)))
            for name, points in sorted(found.items(), key=lambda item: int(item[0].partition("-")[0]))
        )
        if bars:
            series = ("mean of all steps", f"step {newest}")
            yield BarChart(id=f"rl-{prefix.strip('/')}", section=section, title=title, x=unit, series=series, bars=bars)


def rejection_chart(facts: RunFacts) -> BarChart | None:
    """The reasons for which rollouts were rejected, the most frequent first."""
    counts: Counter[str] = Counter()
    for lost in facts.lost:
        counts[lost.reason or f"{lost.kind} failure"] += lost.count
    bars = tuple(Bar(show_controls(reason), (float(count),)) for reason, count in counts.most_common())
    what = "Why rollouts were rejected"
    return (
        BarChart(
            id="rejections", section=OUTCOME, title=what, x="rollouts of the whole run", series=("rollouts",), bars=bars
        )
        if bars
        else None
    )


def time_chart(facts: RunFacts) -> BarChart | None:
    """How many seconds each stage took."""
    seconds = dict(facts.stage_seconds)
    if facts.seconds is not None and seconds and (rest := facts.seconds - sum(seconds.values())) > 0.01 * facts.seconds:
        seconds["everything else"] = rest
    if not seconds:
        return None
    bars = tuple(Bar(name, (value,)) for name, value in seconds.items())
    note = "" if facts.seconds is not None else "So far, of the RL steps that are done."
    return BarChart(
        id="time",
        section=OUTCOME,
        title="Time by stage",
        x="",
        series=("seconds",),
        bars=bars,
        format="seconds",
        note=note,
    )
