"""`ale trace`: a run's reinforcement learning as a Chrome trace, which Perfetto and chrome://tracing open.

Processes are roles, threads their instances, each with a slice for each state. The engine's first thread is the engine
as a whole, the others are its replicas, with node and devices in their names. Arrows lead from a rollout to the step
that trained on it, and counters show how many rollouts were under way and how many sampled. The format: "Trace Event
Format", phases X (slice), M (name), C (counter), s and f (arrow); times are in microseconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ale.store.output_files import file_at, write_output
from ale.store.run_store import RunStore
from ale.trajectory import Trajectory
from ale_report.actor_places import place_of, read_actors
from ale_report.run_facts import RL_STAGE
from ale_report.spans import Member, Span, StepRoles, lanes, replica_states, rollout_spans, step_roles

TRACE_NAME = "trace.json"
TRAINER, ENGINE, ROLLOUTS = 1, 2, 3


def write_trace(folder: Path, out: Path | None = None) -> Path:
    """Write the trace of a run; returns its path. Raises `ConfigError` where `folder` holds no run, and where the file
    cannot be written."""
    with RunStore.open(folder) as store:
        steps = step_roles(store)
        trajectories = list(store.trajectories("stage = ?", (RL_STAGE,)))
        trained = dict(store.rows("SELECT trajectory, version FROM trained"))
        replicas, ranks = replica_states(store), place_of(a for a in read_actors(store) if a.role == "trainer")
    events = list(trace_events(steps, trajectories, trained, replicas, ranks))
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
    return write_output(file_at(out, folder / TRACE_NAME), text, "trace")


def trace_events(
    steps: Sequence[StepRoles],
    trajectories: Sequence[Trajectory],
    trained: dict[str, int],
    replicas: Sequence[Member] = (),
    ranks: str = "",
) -> Iterator[dict[str, Any]]:
    """Yield the events; `trained` has the version that each trajectory's step has made, and `ranks` is the place of the
    trainer's ranks."""
    rollouts = [rollout_spans(t) for t in trajectories]
    trainer = [span for one in steps for span in one.trainer]
    began = min((spans[0][1] for spans in (trainer, *rollouts) if spans), default=math.inf)
    for pid, name in ((TRAINER, "trainer"), (ENGINE, "engine"), (ROLLOUTS, "rollouts")):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}

    threads = [(TRAINER, 0, f"ranks: {ranks}")] if ranks else []
    threads += [(ENGINE, tid, each.label) for tid, each in enumerate(replicas, 1)]
    for pid, tid, name in threads:
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}

    def slices(pid: int, tid: int, spans: Sequence[Span], args: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for state, start, end in spans:
            at, lasting = _us(start - began), _us(end - start)
            yield {"ph": "X", "pid": pid, "tid": tid, "name": state, "ts": at, "dur": lasting, "args": args}

    for tid, each in enumerate(replicas, 1):
        inside = [(state, max(began, start), end) for state, start, end in each.spans if end > began]
        yield from slices(ENGINE, tid, inside, {})
    updates: dict[int, float] = {}
    """Of a step without rollouts, which makes no version, nothing is trained on."""
    for one in steps:
        yield from slices(TRAINER, 0, one.trainer, {"step": one.step, "advice": one.advice})
        yield from slices(ENGINE, 0, one.engine, {})
        began_at = next((start for state, start, _ in one.trainer if state == "logprobs"), one.trainer[-1][1])
        updates.setdefault(one.version, began_at)
    for t, spans, lane in zip(trajectories, rollouts, lanes(rollouts), strict=True):
        facts = {"id": t.id, "task": t.task_id, "step": t.step, "version": t.policy_version, "tokens": t.sampled_tokens}
        yield from slices(ROLLOUTS, lane, spans, facts | ({"rejected": t.rejected} if t.rejected else {}))
        used = updates.get(trained[t.id]) if t.id in trained else None
        if used is not None and spans:
            arrow = {"name": "trained on", "cat": "batch", "id": t.id}
            yield {"ph": "s", "pid": ROLLOUTS, "tid": lane, "ts": _us(spans[-1][1] - began), **arrow}
            yield {"ph": "f", "bp": "e", "pid": TRAINER, "tid": 0, "ts": _us(used - began), **arrow}
    for name, state in (("rollouts under way", None), ("rollouts at the model", "model")):
        change = [
            (at, delta)
            for spans in rollouts
            for s, start, end in (spans if state else [("", spans[0][1], spans[-1][2])] if spans else [])
            if state in (None, s)
            for at, delta in ((start, 1), (end, -1))
        ]
        number = 0
        for at, delta in sorted(change):
            number += delta
            yield {"ph": "C", "pid": ROLLOUTS, "name": name, "ts": _us(at - began), "args": {"number": number}}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)
