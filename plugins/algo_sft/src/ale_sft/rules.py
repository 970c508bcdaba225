"""The rules of `m_task` (Eq. 2): each tells from a trajectory which of its turns teach nothing of the current sub-task.

`contexts.py` says what an agent, the last context and the fates of turns are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator

from ale.endpoint.recorder import gist
from ale.trajectory import Chunk, Trajectory
from ale_sft.contexts import Fate, agents, answer_to, fates, last_context, overlap, reply_of, steps

Rule = Callable[[Trajectory], frozenset[int]]
"""A trajectory -> the positions in `Trajectory.chunks` of the turns that are masked."""

SIMILAR = 0.9
"""Overlap of the token pairs of two turns without calls from which on they are near-duplicates."""
QUOTED_CHARS = 16
"""A reply that is shorter than this is not looked for in what the agent writes later: it would be found by chance."""


def compressed(trajectory: Trajectory) -> frozenset[int]:
    """The agent put a summary of its own in the turn's place."""
    return _with_fate(trajectory, "compressed")


def pruned(trajectory: Trajectory) -> frozenset[int]:
    """The agent left the turn out of its history without putting anything in its place (it tried again, or went on from another
    of several answers), or left out or changed what the turn's call had returned."""
    return _with_fate(trajectory, "pruned")


def sub_task(trajectory: Trajectory) -> frozenset[int]:
    """The turn is another agent's (a sub-agent's, with tools or a system prompt of its own), or it is the answer to a call for
    compression: what it says stands, word for word, in a user's or system message of another context of the agent."""
    last, owner = last_context(trajectory), agents(trajectory)
    if last is None:
        return frozenset()
    others = {i for i, chunk in steps(trajectory) if owner[chunk.sequence] != owner[last]}
    return frozenset(others | set(_summaries(trajectory, owner, owner[last])))


def near_duplicate(trajectory: Trajectory) -> frozenset[int]:
    """The turn repeats any earlier one of its agent, and what came of it did not differ (as far as is known: a test that is run
    again and fails otherwise is progress). Turns with calls repeat each other where they make the same calls; turns without,
    where the token pairs of one overlap with those of the other by `SIMILAR`."""
    owner = agents(trajectory)
    seen: dict[Hashable, list[Hashable]] = {}
    texts: dict[int, list[tuple[Counter[Hashable], Hashable]]] = {}
    masked = set()
    for i, chunk in steps(trajectory):
        if not len(chunk):
            continue
        whose, answer, reply = owner[chunk.sequence], answer_to(trajectory, chunk), reply_of(trajectory, chunk)
        if reply is not None and reply.tool_calls:
            earlier = seen.setdefault((whose, gist(reply).tool_calls), [])
            repeats = any(_same(answer, other) for other in earlier)
            earlier.append(answer)
        else:
            pairs, before = _pairs(trajectory, chunk), texts.setdefault(whose, [])
            repeats = any(_same(answer, other) and overlap(pairs, bag) >= SIMILAR for bag, other in before)
            before.append((pairs, answer))
        if repeats:
            masked.add(i)
    return frozenset(masked)


def side_context(trajectory: Trajectory) -> frozenset[int]:
    """The turn stands in another context than the one in which the episode ended, whyever."""
    last = last_context(trajectory)
    return frozenset(i for i, chunk in steps(trajectory) if chunk.sequence != last)


def truncated(trajectory: Trajectory) -> frozenset[int]:
    """The turn ran into the token limit: it ends in the middle of a thought."""
    return frozenset(i for i, chunk in steps(trajectory) if chunk.finish_reason == "length")


RULES: dict[str, Rule] = {
    rule.__name__: rule for rule in (compressed, pruned, near_duplicate, sub_task, side_context, truncated)
}


def _with_fate(trajectory: Trajectory, fate: Fate) -> frozenset[int]:
    """Turns with a fate; a call for compression is a sub-task and no part of the history that it sums up."""
    return frozenset(i for i, found in fates(trajectory).items() if found == fate) - sub_task(trajectory)


def _summaries(trajectory: Trajectory, owner: list[int], agent: int) -> Iterator[int]:
    """The agent's turns whose text it wrote into another of its contexts."""
    written = [
        (number, message.content)
        for number, context in enumerate(trajectory.sequences) if owner[number] == agent
        for message in context.messages if message.role in ("user", "system")
    ]  # fmt: skip
    for i, chunk in steps(trajectory):
        reply = reply_of(trajectory, chunk) if owner[chunk.sequence] == agent else None
        said = "" if reply is None else reply.content.strip()
        if len(said) >= QUOTED_CHARS and any(said in text for number, text in written if number != chunk.sequence):
            yield i


def _same(answer: Hashable, other: Hashable) -> bool:
    """Whether two answers are not known to differ; one that is empty is not known."""
    return not answer or not other or answer == other


def _pairs(trajectory: Trajectory, chunk: Chunk) -> Counter[Hashable]:
    tokens = trajectory.sequences[chunk.sequence].token_ids[chunk.start : chunk.end]
    return Counter(zip((-1, *tokens), tokens, strict=False))
