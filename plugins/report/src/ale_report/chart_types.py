"""What a chart is: a title, axes and series; the page's script draws it.

A series names a metric of a stage, whose numbers the page holds once in `MetricTable`s, or carries points of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Format = Literal["number", "share", "seconds"]


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
    """A line: a metric of a stage, or points. `style` is the number of its colour and mark on the whole page; without
    it, its place in the chart is."""

    label: str
    stage: str = ""
    metric: str = ""
    points: tuple[Point, ...] = ()
    style: int | None = None


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
OUTCOME = "Outcome"
"""The first section of the page."""
