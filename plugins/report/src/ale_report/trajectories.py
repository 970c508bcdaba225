"""Chooses the rollouts that the report shows, and turns each into a conversation that the page can draw.

It chooses the whole newest evaluation, then rollouts that went wrong (faults and rejected rollouts), then a sample over
stages, steps and outcomes. Long texts lose their middle. Each of the three choices may use a share of the page's size
and is thinned out evenly beyond it; the page says how many of how many rollouts it shows.

A rollout has one `ContextView` for each context that the model saw. A reply of the policy or of a demonstrator has its
chunk beside it, a tool's answer its observation. Messages that an earlier context has already are not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ale.messages import Message, ToolCall
from ale.store.run_store import RunStore
from ale.trajectory import Chunk, Observation, Trajectory
from ale_report.page_json import encode, plain_fields, show_controls
from ale_report.run_facts import EVAL_STAGE

MAX_SAMPLE, MAX_FAULTS = 320, 50
SAMPLE_BYTES, EVAL_BYTES, FAULT_BYTES = 2_800_000, 2_800_000, 800_000
HEAD_CHARS, TAIL_CHARS = 6000, 2000
MAX_BARS = 120

_WRONG = "(rejected IS NOT NULL OR failure IS NOT NULL)"
_EVALUATED = f"(stage = '{EVAL_STAGE}' OR stage LIKE '{EVAL_STAGE}.%')"
# Inner queries read the index alone; the rows themselves are large.
_LAST_ROUND = f"""rowid IN (SELECT rowid FROM trajectories
  WHERE {_EVALUATED} AND step = (SELECT MAX(step) FROM trajectories WHERE {_EVALUATED}))"""
_FAULTS = f"rowid IN (SELECT rowid FROM trajectories WHERE {_WRONG} ORDER BY finished_at DESC LIMIT ?)"
# One of each (stage, step, outcome), then a second one, and so on; the product spreads what the limit lets through.
_SAMPLE = f"""rowid IN (SELECT place FROM (
  SELECT rowid AS place, step, ROW_NUMBER() OVER (PARTITION BY stage, step, passed ORDER BY rowid) AS nth
  FROM trajectories WHERE NOT {_WRONG}) ORDER BY nth, (step * 7919) % 1009 LIMIT ?)"""


@dataclass(frozen=True, slots=True)
class ChunkView:
    """A chunk: the number of its tokens, and at most `MAX_BARS` bars, each the mean log-probability of `per` tokens."""

    index: int
    tokens: int
    sampled: bool
    finish: str
    mean: float | None = None
    bars: tuple[float, ...] = ()
    per: int = 1
    versions: tuple[int, ...] = ()
    error: str = ""
    error_text: str = ""
    side: bool = False


@dataclass(frozen=True, slots=True)
class CallView:
    """A tool call: its arguments by name, or `raw` where they are not a JSON object."""

    name: str
    arguments: tuple[tuple[str, str], ...] = ()
    raw: str = ""


@dataclass(frozen=True, slots=True)
class MessageView:
    """One message. `unseen` marks a tool's answer that came too late for the model to see."""

    role: str
    text: str = ""
    calls: tuple[CallView, ...] = ()
    chunk: ChunkView | None = None
    tool: str = ""
    exit_code: int | None = None
    seconds: float | None = None
    unseen: bool | None = None
    thought: str = ""


@dataclass(frozen=True, slots=True)
class ContextView:
    """One context; its first `shared` messages are also those of the context number `shared_with`."""

    tokens: int
    turns: tuple[MessageView, ...]
    tools: tuple[str, ...] = ()
    shared: int | None = None
    shared_with: int | None = None


@dataclass(frozen=True)
class TrajectoryView:
    """A rollout as the page shows it."""

    id: str
    task: str
    stage: str
    step: int
    split: str
    group: str
    seed: int
    version: int
    outcome: str
    tokens: int
    chunks: int
    lines: tuple[ContextView, ...]
    tags: tuple[str, ...] = ()
    reward: float | None = None
    detail: str = ""
    reward_seconds: float | None = None
    rejected: str = ""
    fault: str = ""
    fault_text: str = ""
    ended_by: str = ""
    seconds: float = 0.0
    timings: tuple[tuple[str, float], ...] = ()
    replayed: int = 0
    """How many chunks an expert's replay made."""
    changed_echoes: int = 0

    @cached_property
    def plain(self) -> dict[str, Any]:
        """Itself for the page: made once, though it is measured first and shown later."""
        return plain_fields(self)


def choose_trajectories(store: RunStore) -> list[TrajectoryView]:
    """The rollouts to show: by stage, the newest step first, in the order in which they finished."""
    faults = _thin_out(FAULT_BYTES, store.trajectories(_FAULTS, (MAX_FAULTS,)))
    chosen = {
        view.id: view
        for views in (
            _thin_out(EVAL_BYTES, store.trajectories(_LAST_ROUND)),
            faults,
            _thin_out(SAMPLE_BYTES, store.trajectories(_SAMPLE, (MAX_SAMPLE - len(faults),))),
        )
        for view in views
    }
    stages = list(dict.fromkeys(view.stage for view in chosen.values()))
    return sorted(chosen.values(), key=lambda view: (stages.index(view.stage), -view.step))


def _thin_out(limit: int, trajectories: Iterator[Trajectory]) -> list[TrajectoryView]:
    """As many of the rollouts as fit into `limit` bytes, chosen evenly."""
    sized = [(view, len(encode(view))) for view in map(view_of, trajectories)]
    kept = sized
    while (size := sum(n for _, n in kept)) > limit:
        count = min(len(kept) - 1, max(1, int(len(kept) * limit / size)))
        kept = [sized[i * len(sized) // count] for i in range(count)] if count else []
    return [view for view, _ in kept]


def view_of(t: Trajectory) -> TrajectoryView:
    """A rollout as the page shows it."""
    outcome = "fault" if t.failure else "rejected" if t.rejected else "passed" if t.passed else "failed"
    return TrajectoryView(
        id=t.id,
        task=show_controls(t.task_id),
        stage=t.stage,
        step=t.step,
        split=t.split,
        group=show_controls(t.group),
        seed=t.seed,
        version=t.policy_version,
        outcome=outcome,
        tokens=sum(map(len, t.chunks)),
        chunks=len(t.chunks),
        lines=_contexts(t),
        tags=tuple(show_controls(tag) for tag in t.tags),
        reward=t.reward.value if t.reward else None,
        detail=_shorten(t.reward.detail) if t.reward else "",
        reward_seconds=t.reward.seconds if t.reward else None,
        rejected=_rejection_text(t),
        fault=t.failure.kind if t.failure else "",
        fault_text=_shorten(t.failure.message) if t.failure else "",
        ended_by=show_controls(t.ended_by),
        seconds=t.seconds,
        timings=t.timings,
        replayed=t.start_chunk,
        changed_echoes=t.changed_echoes,
    )


def _rejection_text(t: Trajectory) -> str:
    because = "" if t.failure else t.rejected_because  # the page shows a failure's message by itself
    return _shorten(": ".join(text for text in (t.rejected, because) if text))


def _contexts(t: Trajectory) -> tuple[ContextView, ...]:
    lines: list[ContextView] = []
    for i, sequence in enumerate(t.sequences):
        messages = sequence.messages
        shared, owner = max(
            ((_shared_messages(messages, other.messages), j) for j, other in enumerate(t.sequences[:i])),
            default=(0, 0),
            key=lambda pair: pair[0],
        )
        own = [chunk for chunk in t.chunks if chunk.sequence == i]
        turns = tuple(_messages(messages, shared, own, t.observations))
        tools = tuple(show_controls(tool.name) for tool in sequence.tools)
        lines.append(ContextView(len(sequence.token_ids), turns, tools, shared or None, owner if shared else None))
    return tuple(lines)


def _shared_messages(a: tuple[Message, ...], b: tuple[Message, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _messages(
    messages: tuple[Message, ...], shared: int, chunks: list[Chunk], observations: tuple[Observation, ...]
) -> Iterator[MessageView]:
    chunk_at = {chunk.turn: chunk for chunk in chunks}
    shared = min([shared, *chunk_at])
    answers: list[Observation] = []
    for i, message in enumerate(messages):
        chunk = chunk_at.get(i)
        if message.role == "assistant":
            yield from map(_unseen_answer, answers)
            answers = [o for o in observations if chunk is not None and o.chunk == chunk.index]
        answer = answers.pop(0) if message.role == "tool" and answers else None
        if i < shared:
            continue
        yield MessageView(
            role=message.role,
            text=_shorten(message.content),
            calls=tuple(map(_call, message.tool_calls)),
            chunk=_chunk(chunk, observations) if chunk else None,
            tool=show_controls(answer.tool) if answer else "",
            exit_code=answer.exit_code if answer else None,
            seconds=answer.seconds if answer else None,
            thought=_shorten(message.reasoning),
        )
    yield from map(_unseen_answer, answers)


def _unseen_answer(o: Observation) -> MessageView:
    return MessageView(
        "tool", _shorten(o.text), tool=show_controls(o.tool), exit_code=o.exit_code, seconds=o.seconds, unseen=True
    )


def _chunk(chunk: Chunk, observations: tuple[Observation, ...]) -> ChunkView:
    logprobs = chunk.logprobs
    # The page shows a failed execution with the tool's answer, so the chunk need not show it again.
    in_answer = chunk.error is not None and any(
        o.chunk == chunk.index and o.text == chunk.error.message for o in observations
    )
    per = max(1, -(-len(logprobs) // MAX_BARS))
    groups = [logprobs[i : i + per] for i in range(0, len(logprobs), per)]
    versions = tuple(sorted(set(chunk.versions)))
    return ChunkView(
        index=chunk.index,
        tokens=len(chunk),
        sampled=chunk.sampled,
        finish=chunk.finish_reason,
        mean=sum(logprobs) / len(logprobs) if logprobs else None,
        bars=tuple(round(sum(g) / len(g), 3) for g in groups),
        per=per,
        versions=versions if len(versions) < 3 else (versions[0], versions[-1]),
        error=chunk.error.kind if chunk.error else "",
        error_text=_shorten(chunk.error.message) if chunk.error and not in_answer else "",
        side=chunk.side,
    )


def _call(call: ToolCall) -> CallView:
    try:
        arguments = call.parsed_arguments()
        named = tuple((show_controls(key), _shorten(_text(value))) for key, value in arguments.items())
    except (ValueError, RecursionError):
        return CallView(show_controls(call.name), raw=_shorten(call.arguments))
    return CallView(show_controls(call.name), named)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shorten(text: str) -> str:
    left_out = len(text) - HEAD_CHARS - TAIL_CHARS
    if left_out > 0:
        text = f"{text[:HEAD_CHARS]}\n[… {left_out:,} characters left out here …]\n{text[-TAIL_CHARS:]}"
    return show_controls(text)
