"""What became of a trajectory's turns: read off its sequences, each of which is one context that the model saw.

1. The contexts of one *agent* have the same tools, and the same system prompt or nearly so (time and date change in some). The agent
   of the current sub-task is the one in whose context the episode ended: its *last context*.
2. A turn of that agent in another context is looked for in the last one. It is *kept* where it stands there too and was answered
   there by what answered it when it was made; *compressed* where something that the agent wrote itself (a user's or a system message,
   which did not stand there before) took its place; else *pruned*: left out, or kept without its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher
from typing import Literal, TypeVar

from ale.endpoint.recorder import gist
from ale.messages import Message
from ale.trajectory import Chunk, Trajectory
from ale.trajectory import Sequence as Context

T = TypeVar("T", bound=Hashable)
Fate = Literal["kept", "compressed", "pruned"]
Answer = tuple[tuple[str, str], ...]
"""Who said what: what the turn's tools returned, or else the one message after it."""

SAME_PROMPT = 0.8
"""Overlap of the words of two system prompts from which on they are one agent's."""


def steps(trajectory: Trajectory) -> list[tuple[int, Chunk]]:
    """The turns with their positions in `Trajectory.chunks`; side calls are none."""
    return [(i, chunk) for i, chunk in enumerate(trajectory.chunks) if not chunk.side]


def last_context(trajectory: Trajectory) -> int | None:
    """The sequence in which the episode ended; None without a turn."""
    turns = steps(trajectory)
    return turns[-1][1].sequence if turns else None


def agents(trajectory: Trajectory) -> list[int]:
    """Whose context each sequence is: a number an agent."""
    known: list[tuple[tuple[str, ...], Counter[str]]] = []
    found = []
    for context in trajectory.sequences:
        tools, prompt = tuple(tool.name for tool in context.tools), _prompt(context)
        same = (i for i, other in enumerate(known) if other[0] == tools and overlap(other[1], prompt) >= SAME_PROMPT)
        number = next(same, len(known))
        if number == len(known):
            known.append((tools, prompt))
        found.append(number)
    return found


def reply_of(trajectory: Trajectory, chunk: Chunk) -> Message | None:
    """The message that a turn stands for; None where none was recorded."""
    messages = trajectory.sequences[chunk.sequence].messages
    return messages[chunk.turn] if chunk.turn < len(messages) and messages[chunk.turn].role == "assistant" else None


def answer_to(trajectory: Trajectory, chunk: Chunk) -> Answer:
    """What answered a turn in its own context; nothing where the context ends with it, and what followed is not known."""
    messages = trajectory.sequences[chunk.sequence].messages
    if reply_of(trajectory, chunk) is None:
        return ()
    return tuple((messages[i].role, messages[i].content) for i in _answers(messages, chunk.turn))


def fates(trajectory: Trajectory) -> dict[int, Fate]:
    """What became of each turn of the agent in whose context the episode ended, by its position in `Trajectory.chunks`."""
    last, owner = last_context(trajectory), agents(trajectory)
    if last is None:
        return {}
    found: dict[int, Fate] = {}
    for number, context in enumerate(trajectory.sequences):
        turns = [(i, chunk) for i, chunk in steps(trajectory) if chunk.sequence == number]
        if not turns or owner[number] != owner[last]:
            continue
        if number == last:
            found.update((i, "kept") for i, _ in turns)
            continue
        of_message = _in_the_last(context, trajectory.sequences[last])
        for i, chunk in turns:
            if chunk.turn >= len(of_message):
                continue
            fate, answers = of_message[chunk.turn], _answers(context.messages, chunk.turn)
            found[i] = "pruned" if fate == "kept" and any(of_message[a] != "kept" for a in answers) else fate
    return found


def overlap(one: Counter[T], other: Counter[T]) -> float:
    """Size of the intersection of two bags over that of their union; 1 for two empty ones."""
    shared = sum(min(one[item], other[item]) for item in one.keys() & other.keys())
    union = one.total() + other.total() - shared
    return shared / union if union else 1.0


def _prompt(context: Context) -> Counter[str]:
    """The words of the system messages that a context begins with."""
    words: Counter[str] = Counter()
    for message in context.messages:
        if message.role != "system":
            break
        words.update(message.content.split())
    return words


def _in_the_last(context: Context, last: Context) -> list[Fate]:
    """What became of each message of a context, turn or not."""
    ours, theirs = list(map(_said, context.messages)), list(map(_said, last.messages))
    out: list[Fate] = ["pruned"] * len(ours)
    for what, start, end, there, _ in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if what == "equal":
            out[start:end] = ["kept"] * (end - start)
        elif what == "replace" and last.messages[there].role in ("user", "system"):
            out[start:end] = ["compressed"] * (end - start)
    return out


def _said(message: Message) -> Hashable:
    return gist(message) if message.role == "assistant" else (message.role, message.content)


def _answers(messages: Sequence[Message], turn: int) -> list[int]:
    """Where the answers to a turn stand: what its tools returned, or else the one message after it."""
    following = range(turn + 1, len(messages))
    end = next((i for i in following if messages[i].role == "assistant"), len(messages))
    said = list(range(turn + 1, end))
    return [i for i in said if messages[i].role == "tool"] or said[:1]
