"""Finds contradictions: a tool declared deterministic must answer identical calls of a run in the same way.

1. Two calls are identical if they have the same task, the same tool and the same arguments, in whichever rollout.
2. The whole answers are compared, except for what `ignore` removes (times, ids).
3. The newest answer of each call is kept, for at most `MOST_CALLS` calls: a single odd answer then costs only the
   rollouts just before and after it, and a service that has changed for good is not held against all later rollouts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ale.trajectory import Trajectory

MOST_CALLS = 10_000
SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """A tool's answer to one call; `arguments` is JSON with sorted keys."""

    tool: str
    arguments: str
    text: str


class KnownAnswers:
    """The known answers of one run's tools."""

    def __init__(self, ignore: Sequence[str] = (), most: int = MOST_CALLS) -> None:
        self._ignore = [re.compile(pattern) for pattern in ignore]
        self._most = most
        self._known: OrderedDict[tuple[str, str, str], tuple[bytes, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def contradiction(self, trajectory: Trajectory, tools: frozenset[str]) -> str | None:
        """Return which of `tools` answered differently from the previous identical call; None if none did."""
        found = None
        for answer in tool_answers(trajectory) if tools else ():
            if answer.tool not in tools:
                continue
            digest = hashlib.sha256(
                remove_patterns(self._ignore, answer.text).encode("utf-8", "surrogatepass")
            ).digest()
            key = trajectory.task_id, answer.tool, answer.arguments
            before = self._known.pop(key, None)
            self._known[key] = digest, answer.text[:SHOWN_CHARS]
            if before is not None and before[0] != digest and found is None:
                found = (
                    f"The tool '{answer.tool}' answered {answer.text[:SHOWN_CHARS]!r} to "
                    f"{answer.arguments[:SHOWN_CHARS]}, "
                    f"where it had answered {before[1]!r}. What may differ goes into rollout.ignore_in_answers."
                )
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return found


def tool_answers(trajectory: Trajectory) -> Iterator[Answer]:
    """Yield the calls of a rollout with their answers: as its scaffold observed them, else as they are in its messages.

    A call that appears in several contexts counts once, with its first answer: an agent may shorten old answers.
    """
    if trajectory.observations:
        for seen in trajectory.observations:
            yield Answer(seen.tool, _canonical(seen.arguments), seen.text)
        return
    answered: set[str] = set()
    for sequence in trajectory.sequences:
        calls = {call.id: call for message in sequence.messages for call in message.tool_calls}
        for message in sequence.messages:
            call = calls.get(message.tool_call_id or "")
            if message.role == "tool" and call is not None and call.id not in answered:
                answered.add(call.id)
                try:
                    arguments = _canonical(json.loads(call.arguments))
                except ValueError:
                    arguments = call.arguments
                yield Answer(call.name, arguments, message.content)


def remove_patterns(patterns: Iterable[re.Pattern[str]], text: str) -> str:
    """Return the text without what matches one of the patterns."""
    for pattern in patterns:
        text = pattern.sub("", text)
    return text


def _canonical(arguments: object) -> str:
    return json.dumps(arguments, sort_keys=True, default=str)
