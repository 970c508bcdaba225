"""Where the actors of a run on a cluster are: what `ale cluster status` shows, from `cluster/roles.json` of its folder.

The run writes the file whenever an actor moves, so it has the places that were the last ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ale.store.run_store import RunStore
from ale_report.page_json import show_controls

STARTS = ("run_started", "run_resumed")
"""The events with which each part of a run begins."""
KEYS = ("role", "name", "node", "devices")
"""What the file says of an actor, as `Actor` has it."""


@dataclass(frozen=True, slots=True)
class Actor:
    """An actor; `role` is `engine`, `trainer` or `rollout`, and `node` as `ale cluster status` names it."""

    role: str
    name: str
    node: str
    devices: str
    """`cpu`, or how many GPUs, in the cluster's words."""


def read_actors(store: RunStore) -> list[Actor]:
    """Return the actors of a run; none if its newest part is not on a cluster, or the file cannot be read."""
    path = store.folder / "cluster" / "roles.json"
    marks = ",".join("?" for _ in STARTS)
    ((began,),) = store.rows(f"SELECT MAX(time) FROM events WHERE kind IN ({marks})", STARTS)
    try:
        if began is not None and path.stat().st_mtime < began:
            return []
        rows = json.loads(path.read_text())["roles"]
        return [Actor(**{key: show_controls(str(row[key])) for key in KEYS}) for row in rows]
    except (OSError, ValueError, KeyError, TypeError):  # it is written by another program, perhaps of another version
        return []


def place_of(actors: Iterable[Actor]) -> str:
    """Return the place of several actors of a role, such as `4f3a2b1c ×2, 5a6b7c8d · 1 GPU`; empty if there is none."""
    nodes: Counter[str] = Counter()
    devices: dict[str, None] = {}
    for actor in actors:
        nodes[actor.node] += 1
        devices[actor.devices] = None
    counted = ", ".join(node if number == 1 else f"{node} ×{number}" for node, number in nodes.items())
    return " · ".join(part for part in (counted, ", ".join(devices)) if part)
