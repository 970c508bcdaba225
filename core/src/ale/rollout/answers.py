"""What tools answered in this run: a tool that is said to be deterministic answers an identical call as it did before.

1. A call is identical to another of the same task with the same tool and the same arguments, in whichever rollout.
2. Compared is the whole answer, but for what `ignore` takes out (times, ids).
3. Of each call the newest answer is kept, for as many calls as `MOST_CALLS`: one odd answer then costs the rollouts on
   both sides of it, and a service that has changed for good is not held against all that come later.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ale.endpoint.prefill import without
from ale.trajectory import Trajectory

MOST_CALLS = 10_000
SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call got; `arguments` is JSON with sorted keys."""

    tool: str
    arguments: str
    text: str


class KnownAnswers:
    """The answers of one run's tools."""

    def __init__(self, ignore: Sequence[str] = (), most: int = MOST_CALLS) -> None:
        self._ignore = [re.compile(pattern) for pattern in ignore]
        self._most = most
        self._known: OrderedDict[tuple[str, str, str], tuple[bytes, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def contradiction(self, trajectory: Trajectory, tools: frozenset[str]) -> str | None:
        """Where one of `tools` answered otherwise than to the identical call before; None where none did."""
        found = None
        for answer in tool_answers(trajectory) if tools else ():
            if answer.tool not in tools:
                continue
            digest = hashlib.sha256(without(self._ignore, answer.text).encode("utf-8", "surrogatepass")).digest()
            key = trajectory.task_id, answer.tool, answer.arguments
            before = self._known.pop(key, None)
            self._known[key] = digest, answer.text[:SHOWN_CHARS]
            if before is not None and before[0] != digest and found is None:
                found = (
                    f"The tool '{answer.tool}' answered {answer.text[:SHOWN_CHARS]!r} to {answer.arguments[:SHOWN_CHARS]}, "
                    f"where it had answered {before[1]!r}. What may differ goes into rollout.replay_ignore."
                )
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return found


def tool_answers(trajectory: Trajectory) -> Iterator[Answer]:
    """The calls of a rollout and their answers: as its scaffold observed them, else as they stand in its messages.

    A call that stands in several contexts counts once, as it was answered first: an agent may shorten old answers.
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


def _canonical(arguments: object) -> str:
    return json.dumps(arguments, sort_keys=True, default=str)
