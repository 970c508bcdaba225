"""Who was in which state when: trainer's and engine's spans from the events of the loop, those of the engine's replicas
and of rollout workers from the events of those who dispatch to them, a rollout's from its trajectory.

    rollout          queue (no place is free), start (its sandbox), model, tool (else of the agent), score, stop
    trainer, engine  see `ale_train.rl.utilization`
    replica          see `ale_engines.pool.member.State`
    worker           busy (it has episodes), idle, or one in which it gets none (leaving, lost, failed)

The states of a rollout fill its time without a gap or an overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ale.store.run_store import RunStore
from ale.trajectory import Trajectory
from ale_report.page_json import show_controls

Span = tuple[str, float, float]
"""State, beginning, end (Unix time)."""
STARTS = ("build", "prepare", "state", "start")
"""The timings of a trajectory before the agent acts."""
ROLES_EVENT, REPLICAS_EVENT, WORKERS_EVENT = "roles", "engine_states", "worker_states"
"""The kinds of the events of the loop, of the pool of engines, and of a cluster's rollout workers."""


@dataclass(frozen=True, slots=True)
class StepRoles:
    """What the loop noted at the end of a step."""

    step: int
    version: int
    """That of the weights after it."""
    advice: str
    trainer: tuple[Span, ...]
    engine: tuple[Span, ...]
    place: str = ""
    """What the trainer computes on, as far as it is known."""


def step_roles(store: RunStore) -> list[StepRoles]:
    """Return what the loop noted; of a step that an interruption undid, what the later attempt noted."""
    found: dict[int, StepRoles] = {}
    for (text,) in store.rows("SELECT data FROM events WHERE kind = ? ORDER BY rowid", (ROLES_EVENT,)):
        data = json.loads(text)
        trainer, engine = (
            tuple((str(state), float(began), float(ended)) for state, began, ended in data[role])
            for role in ("trainer", "engine")
        )
        place = str(data.get("place", ""))
        found[data["step"]] = StepRoles(
            step=data["step"],
            version=data["version"],
            advice=data["advice"],
            trainer=trainer,
            engine=engine,
            place=place,
        )
    return [found[step] for step in sorted(found)]


@dataclass(frozen=True, slots=True)
class Member:
    """A replica of the engine, or a rollout worker, at one place; `place` is empty where nothing is known of it."""

    name: str
    place: str
    spans: tuple[Span, ...]

    @property
    def label(self) -> str:
        """Name and place."""
        return " · ".join(part for part in (self.name, self.place) if part)


def replica_states(store: RunStore) -> list[Member]:
    """Return the replicas by name, in the order in which they came; one that has moved is listed for each place."""
    return _member_states(store, REPLICAS_EVENT, "engines")


def worker_states(store: RunStore) -> list[Member]:
    """Return the rollout workers of a cluster, as `replica_states` does."""
    return _member_states(store, WORKERS_EVENT, "workers")


def _member_states(store: RunStore, kind: str, key: str) -> list[Member]:
    found: dict[str, dict[str, list[Span]]] = {}
    for (text,) in store.rows("SELECT data FROM events WHERE kind = ? ORDER BY rowid", (kind,)):
        for member in json.loads(text)[key]:
            spans = found.setdefault(member["name"], {}).setdefault(member["place"], [])
            for state, began, ended in member["spans"]:
                if spans and spans[-1][0] == state and spans[-1][2] == began:  # an event came in between
                    began = spans.pop()[1]
                if began < ended:
                    spans.append((str(state), float(began), float(ended)))
    return [
        Member(show_controls(name), show_controls(place), tuple(spans))
        for name, places in found.items()
        for place, spans in places.items()
    ]


def rollout_spans(t: Trajectory) -> list[Span]:
    """Return the states of a rollout in order."""
    took = dict(t.timings)
    began, end = t.started_at, t.started_at + t.seconds
    started = min(end, began + sum(took.get(name, 0.0) for name in STARTS)) if "start" in took else end
    acted = min(end, started + took["act"]) if "act" in took else end
    scored = min(end, acted + took["score"]) if "score" in took else end
    spans = [("queue", began - took.get("queue", 0.0), began), ("start", began, started)]
    at = started
    for called, answered in merge((c.called_at, c.called_at + c.seconds) for c in t.chunks if c.called_at):
        called, answered = max(at, called), min(acted, answered)
        if called < answered:
            spans += [("tool", at, called), ("model", called, answered)]
            at = answered
    spans += [("tool", at, acted), ("score", acted, scored), ("stop", scored, end)]
    return [span for span in spans if span[1] < span[2]]


def merge(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of intervals, in order."""
    out: list[tuple[float, float]] = []
    for began, ended in sorted(intervals):
        if out and began <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], ended))
        else:
            out.append((began, ended))
    return out


def lanes(rollouts: Sequence[Sequence[Span]]) -> list[int]:
    """Return a lane for each rollout, by its beginning, so that those of a lane do not overlap; few lanes are used."""
    free: list[float] = []
    out = [0] * len(rollouts)
    for i in sorted(range(len(rollouts)), key=lambda i: rollouts[i][0][1] if rollouts[i] else 0.0):
        if not rollouts[i]:
            continue
        lane = next((n for n, until in enumerate(free) if until <= rollouts[i][0][1]), len(free))
        if lane == len(free):
            free.append(0.0)
        free[lane] = rollouts[i][-1][2]
        out[i] = lane
    return out
