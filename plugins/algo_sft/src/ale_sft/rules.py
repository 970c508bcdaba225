"""Each rule of `m_task` (Eq. 2) finds turns of a trajectory that teach nothing about the current sub-task.

`contexts.py` defines what an agent, the last context and the fate of a turn are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator

from ale.session.recorder import canonical_form
from ale.trajectory import Chunk, Trajectory
from ale_sft.contexts import Fate, agents, answer_to, fates, last_context, overlap, reply_of, steps

Rule = Callable[[Trajectory], frozenset[int]]
"""A rule takes a trajectory and returns the positions in `Trajectory.chunks` of the turns that it masks."""

SIMILAR = 0.9
"""Two turns without calls are near-duplicates if their token pairs overlap at least this much."""
QUOTED_CHARS = 16
"""Replies shorter than this are not searched for in the agent's later messages, because they would match by chance."""


def compressed(trajectory: Trajectory) -> frozenset[int]:
    """Mask a turn that the agent replaced by a summary of its own."""
    return _with_fate(trajectory, "compressed")


def pruned(trajectory: Trajectory) -> frozenset[int]:
    """Mask a turn that the agent removed from its history without replacement (it tried again, or went on from another
    of several answers), and a turn whose tool result the agent removed or changed."""
    return _with_fate(trajectory, "pruned")


def sub_task(trajectory: Trajectory) -> frozenset[int]:
    """Mask a turn of another agent (a sub-agent with other tools or another system prompt), and a turn that answers a
    request for compression: its text appears word for word in a user or system message of another context of the
    agent."""
    last, owner = last_context(trajectory), agents(trajectory)
    if last is None:
        return frozenset()
    others = {i for i, chunk in steps(trajectory) if owner[chunk.sequence] != owner[last]}
    return frozenset(others | set(_summaries(trajectory, owner, owner[last])))


def near_duplicate(trajectory: Trajectory) -> frozenset[int]:
    """Mask a turn that repeats an earlier one of its agent and is not known to have another answer (a test that is run
    again and fails in another way is progress). Turns with calls repeat each other if they make the same calls; turns
    without calls do if their token pairs overlap by at least `SIMILAR`."""
    owner = agents(trajectory)
    seen: dict[Hashable, list[Hashable]] = {}
    texts: dict[int, list[tuple[Counter[Hashable], Hashable]]] = {}
    masked = set()
    for i, chunk in steps(trajectory):
        if not len(chunk):
            continue
        whose, answer, reply = owner[chunk.sequence], answer_to(trajectory, chunk), reply_of(trajectory, chunk)
        if reply is not None and reply.tool_calls:
            earlier = seen.setdefault((whose, canonical_form(reply).tool_calls), [])
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
    """Mask every turn in another context than the one in which the episode ended."""
    last = last_context(trajectory)
    return frozenset(i for i, chunk in steps(trajectory) if chunk.sequence != last)


def truncated(trajectory: Trajectory) -> frozenset[int]:
    """Mask a turn that is incomplete because it reached the token limit."""
    return frozenset(i for i, chunk in steps(trajectory) if chunk.finish_reason == "length")


RULES: dict[str, Rule] = {
    rule.__name__: rule for rule in (compressed, pruned, near_duplicate, sub_task, side_context, truncated)
}


def _with_fate(trajectory: Trajectory, fate: Fate) -> frozenset[int]:
    """Return the turns with a fate, except requests for compression: these belong to the rule `sub_task`."""
    return frozenset(i for i, found in fates(trajectory).items() if found == fate) - sub_task(trajectory)


def _summaries(trajectory: Trajectory, owner: list[int], agent: int) -> Iterator[int]:
    """Yield the agent's turns whose text the agent wrote into another of its contexts."""
    written = [
        (number, message.content)
        for number, context in enumerate(trajectory.sequences)
        if owner[number] == agent
        for message in context.messages
        if message.role in ("user", "system")
    ]
    for i, chunk in steps(trajectory):
        reply = reply_of(trajectory, chunk) if owner[chunk.sequence] == agent else None
        answer = "" if reply is None else reply.content.strip()
        if len(answer) >= QUOTED_CHARS and any(answer in text for number, text in written if number != chunk.sequence):
            yield i


def _same(answer: Hashable, other: Hashable) -> bool:
    """Whether two answers may be the same: an empty answer is not known and may be any."""
    return not answer or not other or answer == other


def _pairs(trajectory: Trajectory, chunk: Chunk) -> Counter[Hashable]:
    tokens = trajectory.sequences[chunk.sequence].token_ids[chunk.start : chunk.end]
    return Counter(zip((-1, *tokens), tokens, strict=False))
