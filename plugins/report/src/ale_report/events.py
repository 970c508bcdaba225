"""The run's events for the report: a table for each kind of event, with a column for each of its fields.

Each kind has a table of its own because a run may have thousands of one kind (refused connections) and three of another
(crucial forks), which would be lost among them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from ale.store.run_store import RunStore
from ale_report.page_json import show_controls
from ale_report.spans import REPLICAS_EVENT, ROLES_EVENT, WORKERS_EVENT

IN_TIMELINE = (ROLES_EVENT, REPLICAS_EVENT, WORKERS_EVENT)
MAX_EVENTS_PER_KIND = 200
MAX_CELL_CHARS = 500

Cell = str | float | None


@dataclass(frozen=True, slots=True)
class EventTable:
    """The events of one kind: the newest of `count`, in the order in which they happened."""

    kind: str
    count: int
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def event_tables(store: RunStore) -> list[EventTable]:
    """The tables in the order in which their kinds came first; what the timeline shows has none."""
    found: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for when, kind, data in newest_events(store, MAX_EVENTS_PER_KIND):
        found.setdefault(kind, []).append((when, data))
    counts = store.rows("SELECT kind, COUNT(*) FROM events GROUP BY kind ORDER BY MIN(rowid)")
    return [_table(kind, count, found.get(kind, [])) for kind, count in counts if kind not in IN_TIMELINE]


def newest_events(store: RunStore, newest: int) -> list[tuple[float, str, dict[str, Any]]]:
    """Return the newest events of each kind in order, as (time, kind, data)."""
    sql = (
        "SELECT time, kind, data FROM (SELECT rowid AS place, time, kind, data, "
        "ROW_NUMBER() OVER (PARTITION BY kind ORDER BY rowid DESC) AS age FROM events) "
        "WHERE age <= ? ORDER BY place"
    )
    return [(when, kind, json.loads(data)) for when, kind, data in store.rows(sql, (newest,))]


def _table(kind: str, count: int, events: list[tuple[float, dict[str, Any]]]) -> EventTable:
    names = list(dict.fromkeys(name for _, data in events for name in data))
    if "step" in names:
        names.insert(0, names.pop(names.index("step")))
    rows = tuple((_format_time(when), *(_cell(data.get(name)) for name in names)) for when, data in events)
    return EventTable(
        show_controls(kind), count, ("time (UTC)", *(show_controls(name.replace("_", " ")) for name in names)), rows
    )


def _cell(value: Any) -> Cell:
    if value is None or isinstance(value, float):
        return value
    # Whole numbers become text, so that a seed or a process id is not rounded.
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return show_controls(text if len(text) <= MAX_CELL_CHARS else f"{text[:MAX_CELL_CHARS]} …")


def _format_time(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(when))
