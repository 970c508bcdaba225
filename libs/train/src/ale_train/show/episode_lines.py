"""One episode as lines: its instruction, its turns with what the tools answered, its reward, and why it ended.

A rollout has a context for each conversation that the model saw; messages that an earlier context has already are not
repeated. What a tool answered after the last turn, which the model never saw, is shown too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ale.messages import Message, ToolCall
from ale.trajectory import Chunk, Observation, Trajectory
from ale_train.show.episode_rows import outcome_of
from ale_train.show.lines import Line, Part, line, one_line, printable, shorten
from ale_train.show.run_facts import why_lost
from ale_train.show.run_lines import OUTCOME, number

ENDINGS = {
    "agent": "The agent finished.",
    "finish": "The agent finished.",
    "answer": "The agent gave an answer without a tool call.",
    "stop": "The agent gave an answer without a tool call.",
    "timeout": "The agent's time was up (rollout.timeout_s, or the task's timeout_s).",
    "agent_timeout": "The agent's time was up, and its program was stopped.",
    "agent_error": "The agent's program ended with an error.",
    "max_turns": "The agent's own limit of turns was reached (scaffold.max_turns).",
    "terminated": "The environment ended the episode.",
    "truncated": "The environment cut the episode off.",
}
ROLE = {"system": "dim bold", "user": "bold cyan", "tool": "bold blue", "assistant": "bold green"}
Settings = Mapping[str, Any]


def episode_lines(
    t: Trajectory, settings: Settings, trained_version: int | None = None, full: bool = False
) -> Iterator[Line]:
    """Yield an episode's page. `settings` are those of the run file; `full` leaves long texts whole."""
    yield from _head(t, trained_version)
    for i, sequence in enumerate(t.sequences):
        shared, owner = max(
            ((_count_shared(sequence.messages, other.messages), j) for j, other in enumerate(t.sequences[:i])),
            default=(0, 0),
            key=lambda pair: pair[0],
        )
        if len(t.sequences) > 1:
            again = f"; its first {shared} messages are those of context {owner + 1}" if shared else ""
            yield line("")
            yield line(f"══ context {i + 1} of {len(t.sequences)}: {len(sequence.token_ids)} tokens{again}", "bold")
        chunks = [chunk for chunk in t.chunks if chunk.sequence == i]
        yield from _messages(t, sequence.messages, shared, chunks, full)
    yield from _result(t, settings, full)


def why_ended(t: Trajectory, settings: Settings) -> str:
    """Return why an episode ended, as a sentence."""
    if t.ended_by == "budget":
        return f"A limit was reached: {_name_limit(t, settings)}."
    if t.failure is not None:
        again = "; it may be tried again" if t.failure.retryable else ""
        return f"It failed, and is no fault of the policy ({t.failure.kind} failure{again})."
    return ENDINGS.get(t.ended_by, f"The agent says: {one_line(t.ended_by)}.")


def _name_limit(t: Trajectory, settings: Settings) -> str:
    rollout = settings.get("rollout")
    limits = rollout if isinstance(rollout, dict) else {}
    calls, tokens = limits.get("max_calls"), limits.get("max_sampled_tokens")
    if isinstance(tokens, int) and t.sampled_tokens >= tokens:
        return f"all {tokens} tokens that it may sample (rollout.max_sampled_tokens)"
    if isinstance(calls, int):
        return f"all {calls} model calls (rollout.max_calls)" if len(t.turns) >= calls else "the length of the context"
    return "model calls (rollout.max_calls) or the length of the context (rollout.max_context)"


def _head(t: Trajectory, trained_version: int | None) -> Iterator[Line]:
    outcome = outcome_of(t.failure, t.rejected, t.passed)
    reward = [] if t.reward is None else [(f", reward {number(t.reward.value)}", "")]
    yield Line(((f"Episode {t.id}", "bold"), (": ", ""), (outcome, OUTCOME[outcome]), *reward))
    tags = f" (tags: {', '.join(t.tags)})" if t.tags else ""
    made_with = "".join(f", {section} {use}" for section, use in t.made_with)
    trained = "" if trained_version is None else f"; trained on, which made version {trained_version}"
    steps = "".join(f", {name} {seconds:.2f}" for name, seconds in t.timings)
    contexts = "" if len(t.sequences) == 1 else f" in {len(t.sequences)} contexts"
    replayed = f", of which an expert's replay made {t.start_chunk}" if t.start_chunk else ""
    for name, value in (
        ("task", f"{t.task_id}{tags}"),
        ("stage", f"{t.stage}, step {t.step}, split {t.split}, group {t.group}, seed {t.seed}{made_with}"),
        ("policy", f"version {t.policy_version}{trained}"),
        ("length", f"{len(t.turns)} turns{replayed}, {t.sampled_tokens} sampled tokens{contexts}"),
        ("seconds", f"{t.seconds:.2f}{steps}"),
    ):
        yield Line(((f"{name:<8} ", "dim"), (one_line(value), "")), 2)


def _count_shared(a: Sequence[Message], b: Sequence[Message]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _messages(
    t: Trajectory, messages: Sequence[Message], shared: int, chunks: Sequence[Chunk], full: bool
) -> Iterator[Line]:
    chunk_at = {chunk.turn: chunk for chunk in chunks}
    shared = min([shared, *chunk_at])
    answers: list[Observation] = []
    asked = False
    for i, message in enumerate(messages):
        chunk = chunk_at.get(i)
        if message.role == "assistant":
            for unseen in answers:
                yield from _answer(unseen, unseen.text, full, seen=False)
            answers = [o for o in t.observations if chunk is not None and o.chunk == chunk.index]
        answer = answers.pop(0) if message.role == "tool" and answers else None
        first_of_user, asked = message.role == "user" and not asked, asked or message.role == "user"
        if i < shared:
            continue
        if message.role == "assistant":
            yield from _turn(t, message, chunk, full)
        elif message.role == "tool":
            yield from _answer(answer, message.content, full)
        else:
            yield from _said("instruction" if first_of_user else message.role, message.role, message.content, full)
    for unseen in answers:
        yield from _answer(unseen, unseen.text, full, seen=False)


def _said(title: str, role: str, text: str, full: bool) -> Iterator[Line]:
    yield line("")
    yield line(f"── {title}", ROLE[role])
    if text:
        yield line(shorten(text, full), "dim" if role == "system" else "", 2)


def _turn(t: Trajectory, message: Message, chunk: Chunk | None, full: bool) -> Iterator[Line]:
    yield line("")
    facts = "the model did not write it here" if chunk is None else _describe(t, chunk)
    number_ = "" if chunk is None else f" {chunk.index + 1}"
    yield Line(((f"── turn{number_}", ROLE["assistant"]), (f"  {facts}", "dim")))
    if message.reasoning:
        yield line("thinks:", "dim italic", 2)
        yield line(shorten(message.reasoning, full), "dim italic", 4)
    if message.content:
        yield line(shorten(message.content, full), indent=2)
    for call in message.tool_calls:
        yield from _call(call, full)
    if chunk is not None and chunk.error is not None:
        in_answer = any(o.chunk == chunk.index and o.text == chunk.error.message for o in t.observations)
        text = "" if in_answer else f": {shorten(chunk.error.message, full)}"
        yield line(f"✗ {chunk.error.kind.replace('_', ' ')}{text}", "red", 2)


def _describe(t: Trajectory, chunk: Chunk) -> str:
    """Return a turn's tokens, seconds and the like."""
    words = [f"{len(chunk)} tokens after {chunk.start}", f"ended by {chunk.finish_reason}"]
    if chunk.seconds:
        words.append(f"{chunk.seconds:.2f} s")
    versions = sorted(set(chunk.versions))
    if versions and versions != [t.policy_version]:
        words.append(f"policy version {', '.join(map(str, versions))}")
    if not chunk.sampled:
        words.append("replayed, not sampled")
    if chunk.side:
        words.append("side call")
    if t.reward is not None and t.reward.by_chunk:
        words.append(f"reward {number(t.reward.by_chunk[chunk.index])}")
    return ", ".join(words)


def _call(call: ToolCall, full: bool) -> Iterator[Line]:
    try:
        arguments = call.parsed_arguments()
    except (ValueError, RecursionError):
        yield Line(
            (("→ ", "yellow"), (one_line(call.name), "bold yellow"), (f"  {shorten(call.arguments, full)}", "")), 2
        )
        return
    yield Line((("→ ", "yellow"), (one_line(call.name), "bold yellow")), 2)
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        several = "\n" in text.rstrip("\n")
        yield Line(((f"{one_line(name)}:", "dim"), ("" if several else f" {shorten(text, full)}", "")), 4)
        if several:
            yield line(shorten(text, full), indent=6)


def _answer(observation: Observation | None, text: str, full: bool, seen: bool = True) -> Iterator[Line]:
    parts: list[Part] = [("← ", "blue"), (one_line(observation.tool) if observation else "tool", "bold blue")]
    if observation is not None:
        code = observation.exit_code
        if code is not None:
            parts.append((f"  exit {code}", "dim" if code == 0 else "red"))
        parts.append((f"  {observation.seconds:.2f} s", "dim"))
        if observation.reward is not None:
            parts.append((f"  reward {number(observation.reward)}", "dim"))
    if not seen:
        parts.append(("  (the model did not see it)", "dim"))
    yield Line(tuple(parts), 2)
    if text:
        yield line(shorten(text, full), indent=4)


def _result(t: Trajectory, settings: Settings, full: bool) -> Iterator[Line]:
    yield line("")
    yield line("── result", "bold")
    yield line(why_ended(t, settings), indent=2)
    if t.failure is not None:
        yield line(shorten(t.failure.message, full), "red", 2)
    elif t.rejected:
        yield line(f"It is kept out of training: {shorten(why_lost(t), full)}", "magenta", 2)
    if t.reward is None:
        yield line("It has no reward.", indent=2)
        return
    passed = ("passed", "green") if t.reward.passed else ("not passed", "yellow")
    seconds = f", in {t.reward.seconds:.2f} s" if t.reward.seconds else ""
    yield Line(((f"reward {number(t.reward.value)}, ", ""), passed, (seconds, "dim")), 2)
    for name, value in t.reward.parts.items():
        yield Line(((f"{one_line(name)}: ", "dim"), (number(value), "")), 4)
    if t.reward.detail:
        yield line(printable(shorten(t.reward.detail, full)), indent=4)
