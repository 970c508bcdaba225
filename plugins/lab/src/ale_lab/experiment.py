"""The words of the lab: an experiment, its arms, and what is shown of them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ale_lab.intervals import Curve

Series = dict[str, Curve]
"""What a run has to show: name -> points; `rl/success`, `eval/success`, ... (see `reading`)."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the things compared: what it changes in the recipe (overrides, as `ale run` takes them)."""

    name: str
    overrides: tuple[str, ...] = ()
    line: str = ""
    """The line that it is a point of, in a chart over a setting; where there is a search, the arm that was tuned."""
    setting: float = 0.0
    """Where on the axis of that chart. In an experiment that is `tuned_as` another, 0 is that one's own arm of the line."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: a series over the steps; with a `summary`, that number of it over the arms' setting.

    `each_seed` adds a thin line a seed, `marks` names a series whose points are marked, `share` says that the values lie
    between 0 and 1."""

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
    """The first is what the learning rates are tried with."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A comparison. `recipe` names the run file; `overrides` are those of every arm."""

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
    """What a search makes as large as it can."""
    tuned_as: Experiment | None = None
    """The experiment whose search has tuned the lines."""

    @property
    def shown(self) -> tuple[str, ...]:
        """The series that panels and columns need, each once."""
        names = [name for panel in self.panels for name in (panel.series, panel.marks)]
        return tuple(dict.fromkeys(name for name in (*names, *(c.series for c in self.columns)) if name))


def recipe_path(name: str) -> Path:
    """The run file of a recipe."""
    return Path(str(files("ale_lab") / "recipes" / f"{name}.yaml"))
