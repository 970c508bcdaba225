"""The timeline of the report: the newest steps, a row for the trainer, one for the engine and one for each of its
replicas, rows of rollouts, and one for each rollout worker if there are several. On a cluster the rows name nodes and
devices.

All ranks of a trainer do the same at the same time, so they are one row. Which worker made a rollout is not stored: its
row says when it had some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ale.store.run_store import RunStore
from ale_report.actor_places import Actor, place_of, read_actors
from ale_report.page_json import show_controls
from ale_report.run_facts import RL_STAGE
from ale_report.spans import Span, lanes, replica_states, rollout_spans, step_roles, worker_states

MAX_ROLLOUTS = 240
MAX_STEPS = 12


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the timeline; the times of its spans are in seconds since the timeline's beginning."""

    kind: str
    """`role`, `replica` (or rollout worker) or `rollout`: how it is drawn."""
    name: str
    place: str
    """Node and devices, as far as they are known."""
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """`steps` has the number and the end of each step, `advice` what was said after each step of the whole run, and
    `actors` is empty for a run without a cluster."""

    seconds: float
    rows: tuple[Row, ...]
    steps: tuple[tuple[int, float], ...]
    advice: tuple[tuple[int, str], ...]
    actors: tuple[Actor, ...] = ()


def read_timeline(store: RunStore) -> Timeline | None:
    """Return the timeline of a run's newest steps; None if it has no step of reinforcement learning."""
    steps = step_roles(store)
    if not steps:
        return None
    advice = tuple((one.step, show_controls(one.advice)) for one in steps)
    newest = "SELECT rowid, finished_at FROM trajectories WHERE stage = ? ORDER BY rowid DESC LIMIT ?"
    times = [when for _, when in store.rows(newest, (RL_STAGE, MAX_ROLLOUTS))]
    full = len(times) == MAX_ROLLOUTS
    shown = [one for one in steps[-MAX_STEPS:] if not full or one.trainer[0][1] >= times[-1]] or steps[-1:]
    began, ended = shown[0].trainer[0][1], shown[-1].trainer[-1][2]
    inside = f"rowid IN (SELECT rowid FROM ({newest}) WHERE finished_at >= ?)"
    rollouts = [rollout_spans(t) for t in store.trajectories(inside, (RL_STAGE, MAX_ROLLOUTS, began))]

    def cut(spans: Sequence[Span]) -> tuple[Span, ...]:
        inside = ((state, max(began, a) - began, min(ended, b) - began) for state, a, b in spans)
        return tuple((state, round(a, 4), round(b, 4)) for state, a, b in inside if a < b)

    actors = read_actors(store)
    ranks, made_at = (place_of(a for a in actors if a.role == role) for role in ("trainer", "rollout"))
    trainer_at = ranks or show_controls(steps[-1].place)
    rows = [
        Row("role", "trainer", trainer_at, cut([span for one in shown for span in one.trainer])),
        Row("role", "engine", "", cut([span for one in shown for span in one.engine])),
    ]
    workers = worker_states(store)
    several = len({worker.name for worker in workers}) > 1
    for each in (*replica_states(store), *(workers if several else ())):
        if spans := cut(each.spans):
            rows.append(Row("replica", each.name, each.place, spans))
    in_lane: dict[int, list[Span]] = {}
    for lane, of_rollout in zip(lanes(rollouts), rollouts, strict=True):
        in_lane.setdefault(lane, []).extend(of_rollout)
    for lane in sorted(in_lane):
        name, place = ("rollouts", made_at) if lane == 0 else ("", "")
        rows.append(Row("rollout", name, place, cut(in_lane[lane])))
    ends = tuple((one.step, round(one.trainer[-1][2] - began, 4)) for one in shown)
    return Timeline(round(ended - began, 4), tuple(rows), ends, advice, tuple(actors))
