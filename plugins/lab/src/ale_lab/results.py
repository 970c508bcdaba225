"""The results of an experiment: means over seeds with intervals, a Markdown table, and everything as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from ale.store.output_files import write_output
from ale_lab.confidence_intervals import Interval, bootstrap
from ale_lab.curve_summaries import SUMMARIES
from ale_lab.experiment import Column, Experiment, Series
from ale_lab.hyperparameter_search import Choice


@dataclass(frozen=True, slots=True)
class Results:
    """The series of every arm and seed, in the order of the experiment's arms; `costs` (seconds, rollouts) where they
    are known."""

    experiment: Experiment
    seeds: tuple[int, ...]
    series: Mapping[str, Mapping[int, Series]]
    costs: Mapping[str, Mapping[int, tuple[float, float]]]
    notes: tuple[str, ...] = ()
    tuned: Mapping[str, Choice] = field(default_factory=dict)
    """The settings that a search found, by arm."""
    search_seeds: tuple[int, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    """`Plan.settings` by arm."""
    quick: bool = False

    def band(self, arm: str, name: str) -> tuple[list[float], list[Interval]]:
        """The steps that all seeds have, and at each of them the mean over seeds with its interval."""
        curves = [dict(self.series[arm][seed].get(name, ())) for seed in self.seeds]
        steps = sorted(set.intersection(*(set(c) for c in curves)))
        return steps, bootstrap([[c[s] for s in steps] for c in curves]) if steps else []

    def numbers(self, arm: str, column: Column) -> list[float]:
        """The column's number for each seed. Raises `KeyError` where a seed has no such series."""
        return [SUMMARIES[column.summary](self.series[arm][seed][column.series]) for seed in self.seeds]


def interval_over_seeds(values: Sequence[float]) -> Interval:
    """The mean of some seeds' numbers."""
    return bootstrap([[v] for v in values])[0]


def format_interval(interval: Interval) -> str:
    """`0.84 [0.80, 0.88]`; of one seed the number alone."""
    mean, low, high = (f"{round(x, 9) + 0.0:.3g}" for x in (interval.mean, interval.low, interval.high))  # -1e-17 is 0
    return mean if interval.seeds < 2 else f"{mean} [{low}, {high}]"


def format_table(results: Results) -> str:
    """A table of the numbers of each arm; below it a table of differences, paired by seed, from the first arm or, over
    a setting, from the first arm of the same line."""
    columns = results.experiment.columns
    titles = [column.title for column in columns]
    arms = results.experiment.arms
    lines = {arm.line: arm.name for arm in reversed(arms)} if results.experiment.setting else {}
    against = {arm.name: lines.get(arm.line, arms[0].name) for arm in arms}
    compared = [arm.name for arm in arms if against[arm.name] != arm.name]
    seeds = ", ".join(map(str, results.seeds))
    out = [f"# {results.experiment.title}", "", f"Seeds: {seeds}. Mean over seeds [95 % bootstrap interval].", ""]
    rows = []
    for arm in against:
        costs = results.costs[arm]
        cells = [format_interval(interval_over_seeds(results.numbers(arm, column))) for column in columns]
        whole = all(seed in costs for seed in results.seeds)  # runs of an earlier lab may have no costs
        seconds, rollouts = (f"{fmean(costs[s][i] for s in results.seeds):.0f}" if whole else "–" for i in (0, 1))
        rows.append([arm, *cells, rollouts, seconds])
    out += _markdown_rows(["arm", *titles, "rollouts", "seconds"], rows)
    if compared:
        pairs = [
            [
                arm,
                *(
                    format_interval(interval_over_seeds(_differences(results, arm, against[arm], column)))
                    for column in columns
                ),
            ]
            for arm in compared
        ]
        whom = "the first of its line" if lines else f"`{arms[0].name}`"
        out += ["", f"Difference from {whom}, paired by seed:", "", *_markdown_rows(["arm", *titles], pairs)]
    return "\n".join([*out, *(line for note in results.notes for line in ("", note)), ""])


def _differences(results: Results, arm: str, other: str, column: Column) -> list[float]:
    return [a - b for a, b in zip(results.numbers(arm, column), results.numbers(other, column), strict=True)]


def _markdown_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def results_as_json(results: Results) -> dict[str, Any]:
    """Everything that the figure and the table show, with the curves of each seed."""
    e = results.experiment
    return {
        "experiment": e.name,
        "quick": results.quick,
        "seeds": list(results.seeds),
        "arms": {
            arm.name: {
                "overrides": [*e.overrides, *arm.overrides],
                "settings": results.settings.get(arm.name, ""),
                "costs": results.costs[arm.name],
                "series": {
                    name: {str(seed): results.series[arm.name][seed].get(name, []) for seed in results.seeds}
                    for name in e.series_names
                },
                "columns": {
                    column.title: {
                        "of_seeds": results.numbers(arm.name, column),
                        **asdict(interval_over_seeds(results.numbers(arm.name, column))),
                    }
                    for column in e.columns
                },
            }
            for arm in e.arms
        },
        "notes": list(results.notes),
        "tuned": {arm: asdict(choice) for arm, choice in results.tuned.items()},
        "search_seeds": list(results.search_seeds),
    }


def write_results(results: Results, folder: Path) -> None:
    """Write `table.md` and `data.json`; the latter may be the only copy of a run's numbers, so it is replaced in one
    move."""
    write_output(folder / "table.md", format_table(results))
    write_output(folder / "data.json", json.dumps(results_as_json(results), indent=1) + "\n")
