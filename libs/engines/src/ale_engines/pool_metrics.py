"""The metrics of a pool of engines."""

from __future__ import annotations

from ale_engines.members import Members

MEANS = ("slot_use", "server_cache_use", "server_prefix_hit_rate")
"""Metrics that are shares: the pool's is the mean by slots. All others are added up."""


def collect_metrics(members: Members) -> dict[str, float]:
    """Return each metric of the replicas in sum and as `<replica>/<metric>`, and those of the pool itself: `replicas`,
    `replicas_serving`, `waiting` (requests), `interruptions` (of generations) and `restarts`."""
    found: dict[str, float] = {}
    slots = sum(member.slots for member in members)
    for member in members:
        for name, value in member.replica.metrics().items():
            found[f"{member.name}/{name}"] = value
            found[name] = found.get(name, 0.0) + (value * member.slots / slots if name in MEANS else value)
    found["replicas"] = float(len(members))
    found["replicas_serving"] = float(sum(member.serving for member in members))
    found["waiting"] = float(members.admission.waiting)
    for name in ("interruptions", "restarts"):
        found[name] = float(members.counts[name])
    return found
