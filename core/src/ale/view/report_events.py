"""What happened in a run, for the report: a table for each kind of event, with a column for each of its fields.

By kind, since a run may have thousands of one (refused connections) and three of another (crucial forks) that are not to
drown among them.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from ale.store import RunStore
from ale.view.report_json import visible

MOST_OF_A_KIND = 200
MOST_CHARS = 500

Cell = str | float | None


@dataclass(frozen=True, slots=True)
class EventTable:
    """The events of one kind: the newest of `count`, in the order in which they happened."""

    kind: str
    count: int
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def event_tables(store: RunStore) -> list[EventTable]:
    """The tables in the order in which their kinds came first."""
    found: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for when, kind, data in store.events(newest=MOST_OF_A_KIND):
        found.setdefault(kind, []).append((when, data))
    return [_table(kind, count, found.get(kind, [])) for kind, count in store.event_counts().items()]


def _table(kind: str, count: int, events: list[tuple[float, dict[str, Any]]]) -> EventTable:
    names = list(dict.fromkeys(name for _, data in events for name in data))
    if "step" in names:
        names.insert(0, names.pop(names.index("step")))
    rows = tuple((_clock(when), *(_cell(data.get(name)) for name in names)) for when, data in events)
    return EventTable(visible(kind), count, ("time (UTC)", *(visible(name.replace("_", " ")) for name in names)), rows)


def _cell(value: Any) -> Cell:
    if value is None or isinstance(value, float):
        return value
    # A whole number is as it stands: a seed or a process id is not to be rounded.
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return visible(text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]} …")


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(when))
