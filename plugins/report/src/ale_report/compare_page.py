"""The page of `ale compare`: the tables, and the runs' curves in one chart each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ale.store.output_files import write_output
from ale_report.chart_types import Format, LineChart, Point, Series
from ale_report.page import render_page
from ale_report.page_json import show_controls
from ale_report.run_comparison import ComparedRun, curve, shared_sets, table
from ale_report.run_facts import EVAL_STAGE, RL_STAGE

PAGE_NAME = "compare.html"
_SCRIPTS = ("report_dom.js", "report_charts.js", "compare.js")
_CHARTS: tuple[tuple[str, str, str, str, Format], ...] = (
    (EVAL_STAGE, "success", "Held-out success", "tasks solved", "share"),
    (EVAL_STAGE, "reward", "Held-out reward", "mean", "number"),
    (RL_STAGE, "success", "Success of the training rollouts", "share of rollouts", "share"),
    (RL_STAGE, "reward", "Reward of the training rollouts", "mean", "number"),
    (RL_STAGE, "entropy", "Entropy", "nats per token", "number"),
    (RL_STAGE, "chunks", "Chunks per rollout", "mean", "number"),
    (RL_STAGE, "sampled_tokens", "Sampled tokens", "a step", "number"),
)
"""Stage, metric, title, unit, format."""


def new_page(run: Path) -> Path:
    """Return the page for a comparison: in a folder of its own beside this run, which is not made yet."""
    return run.resolve().parent / f"compare-{time.strftime('%Y%m%d-%H%M%S')}" / PAGE_NAME


@dataclass(frozen=True, slots=True)
class ComparePage:
    """The data for the page's script."""

    charts: list[LineChart]


def write_comparison(runs: Sequence[ComparedRun], path: Path) -> Path:
    """Write the page; returns its path."""
    tables = [(name, table(runs, name)) for name in shared_sets(runs)]
    page = render_page("compare.html", _SCRIPTS, ComparePage(list(charts(runs))), tables=tables, runs=runs)
    return write_output(path, page, "page")


def charts(runs: Sequence[ComparedRun]) -> Iterator[LineChart]:
    """Yield a chart for each metric that one of the runs has, with a line for each run."""
    named = [
        (f"{EVAL_STAGE}.{name}", "success", f"Held-out success: {name}", "tasks solved", "share")
        for name in shared_sets(runs)
        if name
    ]
    for stage, name, title, unit, form in (*_CHARTS[:2], *named, *_CHARTS[2:]):
        series = []
        for i, run in enumerate(runs):
            points = tuple(Point(float(step), value, low, high) for step, value, low, high in curve(run, stage, name))
            if points:
                series.append(Series(show_controls(run.name), points=points, style=i))
        if series:
            note = "Bands: 95 % intervals over tasks." if stage != RL_STAGE else ""
            zero = name != "entropy"
            first = (stage, name) == (EVAL_STAGE, "success")
            kind: Format = "share" if form == "share" else "number"
            chart = f"{stage}-{name}".replace(".", "-")
            yield LineChart(
                id=chart,
                section="Curves",
                title=title,
                x="RL step",
                y=unit,
                series=tuple(series),
                format=kind,
                note=note,
                ticks=_name_starts(runs, series) if stage != RL_STAGE else (),
                zero=zero,
                wide=first,
            )


def _name_starts(runs: Sequence[ComparedRun], series: Sequence[Series]) -> tuple[tuple[float, str], ...]:
    """Name the places of a chart's axis that are before the first step: as the runs that train call them."""
    shown = {point.x for each in series for point in each.points if point.x <= 0}
    trained = [e for run in runs if run.steps for e in run.facts.evaluations]
    named = {step: sorted({e.label for e in trained if e.step == step}) for step in sorted(shown)}
    return tuple((step, labels[0] if len(labels) == 1 else "before RL") for step, labels in named.items() if trained)
