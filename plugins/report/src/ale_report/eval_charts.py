"""The charts of what evaluations found: success and reward with their intervals, several tries, sets, tags, parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ale_report.chart_types import OUTCOME, Bar, BarChart, Chart, Format, LineChart, Point, Series
from ale_report.run_facts import BEFORE_SFT_STEP, EVAL_STAGE, RL_STAGE, Evaluation, Metrics, RunFacts, eval_stages

FAMILY_PREFIX, PART_PREFIX = "success/", "parts/"
INTERVAL = "Band: 95 % interval over tasks."


def eval_charts(facts: RunFacts, metrics: Metrics) -> Iterator[Chart]:
    """Yield the charts of the evaluations that have numbers."""
    places = _places(facts.evaluations, metrics)
    found = [
        _held_out_chart(
            name="success", title="Success", unit="tasks solved", facts=facts, metrics=metrics, places=places
        ),
        _held_out_chart(name="reward", title="Reward", unit="mean reward", facts=facts, metrics=metrics, places=places),
        _sets_chart(metrics, places),
        *_tries_charts(metrics, places),
        family_chart(facts, metrics),
        _parts_chart(metrics, places),
    ]
    ticks = tuple((places[e.step], e.label) for e in facts.evaluations if e.step <= 0)
    for chart in found:
        if isinstance(chart, LineChart):
            yield replace(chart, ticks=ticks)
        elif chart is not None:
            yield chart


def _places(rounds: tuple[Evaluation, ...], metrics: Metrics) -> dict[int, float]:
    """Return where each evaluation is on the horizontal axis.

    The one before SFT is drawn one step before zero, on a long axis further away, so that both can be seen."""
    training = metrics.get(RL_STAGE, {}).get("success", [])
    last = max([step for step, _ in training] + [e.step for e in rounds], default=0)
    before = -max(1.0, 0.12 * last)
    return {e.step: before if e.step == BEFORE_SFT_STEP else float(e.step) for e in rounds}


def points_of(
    metrics: Metrics, stage: str, name: str, places: dict[int, float], rounds: tuple[Evaluation, ...] = ()
) -> tuple[Point, ...]:
    """Return a metric of evaluations with its interval, where there is one."""
    found = metrics.get(stage, {})
    low, high = (dict(found.get(f"{name}_{bound}", [])) for bound in ("low", "high"))
    labels = {e.step: e.label for e in rounds}
    return tuple(
        Point(places.get(step, float(step)), value, low.get(step), high.get(step), labels.get(step, ""))
        for step, value in found.get(name, [])
    )


def _held_out_chart(
    name: str, title: str, unit: str, facts: RunFacts, metrics: Metrics, places: dict[int, float]
) -> LineChart | None:
    """Return the held-out metric with its interval, and that of the training rollouts."""
    if name == "success":  # a run of an earlier version has no interval in its metrics, but its facts do
        rounds = facts.evaluations
        heldout = tuple(Point(places[e.step], e.success, e.low, e.high, e.label) for e in rounds)
    else:
        heldout = points_of(metrics, EVAL_STAGE, name, places, facts.evaluations)
        if not heldout:
            return None
    series = [Series("held-out", points=heldout)] if heldout else []
    if metrics.get(RL_STAGE, {}).get(name):
        series.append(Series("training rollouts", RL_STAGE, name))
    if not series:
        return None
    note = f"{INTERVAL} Held-out episodes always start at the beginning of a task."
    form: Format = "share" if name == "success" else "number"
    return LineChart(
        id=name,
        section=OUTCOME,
        title=title,
        x="RL step",
        y=unit,
        series=tuple(series),
        format=form,
        note=note,
        zero=True,
        wide=name == "success",
    )


def _sets_chart(metrics: Metrics, places: dict[int, float]) -> LineChart | None:
    """Return the success of each named evaluation set."""
    named = {stage: stage.partition(".")[2] for stage in eval_stages(metrics) if stage != EVAL_STAGE}
    series = [Series(name, points=points_of(metrics, stage, "success", places)) for stage, name in named.items()]
    if not series:
        return None
    return LineChart(
        id="sets",
        section=OUTCOME,
        title="Success by evaluation set",
        x="RL step",
        y="tasks solved",
        series=tuple(series),
        format="share",
        note=INTERVAL,
        zero=True,
    )


def _tries_charts(metrics: Metrics, places: dict[int, float]) -> Iterator[LineChart]:
    """Yield pass@k of each evaluation with several runs of a task."""
    for stage in eval_stages(metrics):
        names = [name for name in metrics.get(stage, {}) if re.fullmatch(r"pass[@^]\d+", name)]
        names.sort(key=lambda name: (name[4], int(name[5:])))
        if len(names) > 1:
            series = tuple(Series(name, points=points_of(metrics, stage, name, places)) for name in names)
            of = stage.partition(".")[2]
            title = f"Several tries{f': {of}' if of else ''}"
            note = f"pass@k: one of k runs passes; pass^k: all of them. {INTERVAL}"
            yield LineChart(
                id=f"tries-{of}",
                section=OUTCOME,
                title=title,
                x="RL step",
                y="of the tasks",
                series=series,
                format="share",
                note=note,
                zero=True,
            )


def _parts_chart(metrics: Metrics, places: dict[int, float]) -> LineChart | None:
    """Return the means of the parts of the held-out reward."""
    series = tuple(
        Series(f"{f'{of}: ' if (of := stage.partition('.')[2]) else ''}{name.removeprefix(PART_PREFIX)}", points=points)
        for stage in eval_stages(metrics)
        for name in metrics[stage]
        if name.startswith(PART_PREFIX) and (points := points_of(metrics, stage, name, places))
    )
    return (
        LineChart(id="parts", section=OUTCOME, title="Parts of the reward", x="RL step", y="mean", series=series)
        if series
        else None
    )


def family_chart(facts: RunFacts, metrics: Metrics) -> BarChart | None:
    """Return held-out success by the first tag of the task: before training and in the newest round."""
    rounds = _before_and_after(facts.evaluations)
    families = {
        f"{f'{of}: ' if (of := stage.partition('.')[2]) else ''}{name.removeprefix(FAMILY_PREFIX)}": dict(values)
        for stage in eval_stages(metrics)
        for name, values in metrics[stage].items()
        if name.startswith(FAMILY_PREFIX)
    }
    if not rounds or not families:
        return None
    bars = tuple(Bar(name, tuple(v.get(e.step) for e in rounds)) for name, v in sorted(families.items()))
    return BarChart(
        id="families",
        section=OUTCOME,
        title="Success by task family",
        x="held-out",
        series=tuple(e.label for e in rounds),
        bars=bars,
        format="share",
    )


def _before_and_after(rounds: tuple[Evaluation, ...]) -> tuple[Evaluation, ...]:
    if len(rounds) < 2:
        return rounds
    later = [e for e in rounds[:-1] if e.step >= 0]
    return (later[0] if later else rounds[0], rounds[-1])
