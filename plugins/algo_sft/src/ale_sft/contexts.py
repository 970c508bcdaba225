"""Finds out what happened to a trajectory's turns. Each sequence is one context that the model saw.

1. The contexts of one *agent* have the same tools and the same system prompt, or nearly the same (some contain time
   and date). The agent of the current sub-task is the agent in whose context the episode ended, its *last context*.
2. Each turn of that agent in another context is searched for in the last context. It is *kept* if it is there too, with
   the same answer as when it was made. It is *compressed* if a message that the agent wrote itself (a user or system
   message that was not there before) took its place. Otherwise it is *pruned*: the turn was left out, or it was kept
   without its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher
from typing import Literal, TypeVar

from ale.messages import Message
from ale.session.recorder import canonical_form
from ale.trajectory import Chunk, Trajectory
from ale.trajectory import Sequence as Context

T = TypeVar("T", bound=Hashable)
Fate = Literal["kept", "compressed", "pruned"]
Answer = tuple[tuple[str, str], ...]
"""Roles and contents of the messages that a turn's tools returned, or otherwise of the one message after the turn."""

SAME_PROMPT = 0.8
"""Two system prompts are of the same agent if their words overlap at least this much."""


def steps(trajectory: Trajectory) -> list[tuple[int, Chunk]]:
    """Return the turns with their positions in `Trajectory.chunks`; side calls are not turns."""
    return [(i, chunk) for i, chunk in enumerate(trajectory.chunks) if not chunk.side]


def last_context(trajectory: Trajectory) -> int | None:
    """Return the sequence in which the episode ended; None if there is no turn."""
    turns = steps(trajectory)
    return turns[-1][1].sequence if turns else None


def agents(trajectory: Trajectory) -> list[int]:
    """Return for each sequence the number of the agent whose context it is."""
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
    """Return the message that a turn produced; None if no message was recorded."""
    messages = trajectory.sequences[chunk.sequence].messages
    return messages[chunk.turn] if chunk.turn < len(messages) and messages[chunk.turn].role == "assistant" else None


def answer_to(trajectory: Trajectory, chunk: Chunk) -> Answer:
    """Return the answer to a turn in its own context; it is empty if the context ends with the turn, because the answer
    is then not known."""
    messages = trajectory.sequences[chunk.sequence].messages
    if reply_of(trajectory, chunk) is None:
        return ()
    return tuple((messages[i].role, messages[i].content) for i in _answers(messages, chunk.turn))


def fates(trajectory: Trajectory) -> dict[int, Fate]:
    """Return what happened to each turn of the agent in whose context the episode ended, by the turn's position in
    `Trajectory.chunks`."""
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
    """Return the size of the intersection of two multisets divided by that of their union; 1 if both are empty."""
    shared = sum(min(one[item], other[item]) for item in one.keys() & other.keys())
    union = one.total() + other.total() - shared
    return shared / union if union else 1.0


def _prompt(context: Context) -> Counter[str]:
    """Return the words of the system messages at the beginning of a context."""
    words: Counter[str] = Counter()
    for message in context.messages:
        if message.role != "system":
            break
        words.update(message.content.split())
    return words


def _in_the_last(context: Context, last: Context) -> list[Fate]:
    """Return what happened to each message of a context, whether it is a turn or not."""
    ours, theirs = list(map(_identity, context.messages)), list(map(_identity, last.messages))
    out: list[Fate] = ["pruned"] * len(ours)
    for what, start, end, there, _ in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if what == "equal":
            out[start:end] = ["kept"] * (end - start)
        elif what == "replace" and last.messages[there].role in ("user", "system"):
            out[start:end] = ["compressed"] * (end - start)
    return out


def _identity(message: Message) -> Hashable:
    return canonical_form(message) if message.role == "assistant" else (message.role, message.content)


def _answers(messages: Sequence[Message], turn: int) -> list[int]:
    """Return the positions of the answers to a turn: what its tools returned, or otherwise the one message after it."""
    following = range(turn + 1, len(messages))
    end = next((i for i in following if messages[i].role == "assistant"), len(messages))
    replies = list(range(turn + 1, end))
    return [i for i in replies if messages[i].role == "tool"] or replies[:1]
