"""The metrics of a pool of engines."""

from __future__ import annotations

from collections import Counter

from ale_engines.pool.member import State
from ale_engines.pool.members import Members
from ale_engines.server.metrics import STATES

MEANS = {"slot_use", "server_cache_use", "server_prefix_hit_rate"}
"""Metrics that are shares: the pool's is the mean by slots. All others are added up."""


def collect_metrics(members: Members) -> dict[str, float]:
    """Return each metric of the replicas in sum and as `<replica>/<metric>`, and those of the pool itself: `replicas`,
    `replicas_serving`, `replicas_asleep`, `waiting` (requests), `interruptions` (of generations) and `restarts`. How a
    server is (its cache's use, say) is left out while its replica has none that serves."""
    found: dict[str, float] = {}
    slots: Counter[str] = Counter()
    for member in members:
        serves = member.state not in (State.EMPTY, State.LOST, State.ASLEEP, State.FAILED)
        for name, value in member.replica.metrics().items():
            if name in STATES and not serves:
                continue
            slots[name] += member.slots
            found[f"{member.name}/{name}"] = value
            found[name] = found.get(name, 0.0) + (value * member.slots if name in MEANS else value)
    for name in found.keys() & MEANS:
        found[name] /= slots[name]
    found["replicas"] = float(len(members))
    found["replicas_serving"] = float(sum(member.serving for member in members))
    found["replicas_asleep"] = float(sum(member.state is State.ASLEEP for member in members))
    found["waiting"] = float(members.admission.waiting)
    for name in ("interruptions", "restarts"):
        found[name] = float(members.counts[name])
    return found
