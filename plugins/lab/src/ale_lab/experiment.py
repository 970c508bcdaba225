"""The data types of the lab: an experiment, its arms, and the charts and columns that show its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

Curve = Sequence[tuple[float, float]]
"""Points (step, value), by step."""
Series = dict[str, Curve]
"""The curves of a run by name: `rl/success`, `eval/success`, ... (see `read_runs`)."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the settings that an experiment compares: overrides of the recipe, as `ale run` takes them."""

    name: str
    overrides: tuple[str, ...] = ()
    line: str = ""
    """In a chart over a setting: the line to which the arm belongs. Where there is a search: the arm that was tuned."""
    setting: float = 0.0
    """The arm's place on the axis of that chart. In an experiment that is `tuned_as` another one, 0 stands for the arm
    of the other experiment."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: a series over the steps; with a `summary`, that number of the series over the arms' setting.

    `each_seed` adds a thin line a seed, `marks` names a series whose points are marked, `share` says that the values
    lie between 0 and 1."""

    title: str
    series: str
    y: str
    summary: str = ""
    each_seed: bool = False
    marks: str = ""
    share: bool = True


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table: a summary (`intervals.SUMMARIES`) of a series."""

    title: str
    series: str
    summary: str


@dataclass(frozen=True, slots=True)
class Probe:
    """An evaluation that the arms' runs do not make: of each checkpoint, with these overrides, as `<name>/success`."""

    name: str
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Search:
    """How an arm is tuned: the learning rates first, then its one own setting at the best of them."""

    arm: str
    rates: tuple[float, ...]
    key: str
    values: tuple[float, ...]
    """Values of the setting; the learning rates are tried with the first."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A comparison. `recipe` names the run file; every arm gets `overrides` besides its own."""

    name: str
    title: str
    recipe: str
    arms: tuple[Arm, ...]
    panels: tuple[Panel, ...]
    columns: tuple[Column, ...]
    overrides: tuple[str, ...] = ()
    setting: str = ""
    probe: Probe | None = None
    searches: tuple[Search, ...] = ()
    judged_by: Column = Column("area", "eval/success", "area")
    """The number that a search maximizes."""
    tuned_as: Experiment | None = None
    """The experiment whose search has tuned the lines."""

    @property
    def series_names(self) -> tuple[str, ...]:
        """The series that panels and columns need, each once."""
        names = [name for panel in self.panels for name in (panel.series, panel.marks)]
        return tuple(dict.fromkeys(name for name in (*names, *(c.series for c in self.columns)) if name))


def recipe_path(name: str) -> Path:
    """The run file of a recipe."""
    return Path(str(files("ale_lab") / "recipes" / f"{name}.yaml"))
