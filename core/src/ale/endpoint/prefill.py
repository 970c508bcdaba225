"""Prefill: an expert trajectory answers the first calls of an episode, verbatim, while the agent really acts on them.

1. The k-th call of the conversation gets the expert's k-th reply: its very tokens where they are in the policy's vocabulary, else its
   text. After `chunks` of them the policy takes over (chunk-level initialized resampling, 3.2.4.4).
2. What stands between two replies is what the environment answered. Where that is not what the expert saw, the replay has
   *diverged*: the policy would go on from a state that was never the expert's. The episode ends and is not trained on.
   What the environment answered to the last replayed chunk is looked at too, when the policy is asked for the first time.
   An agent that begins another context (a summary, a sub-agent) has to do so where it did for the expert, and all of that context
   has to say the same.
3. A call with other tools than the expert's is a side call (a title, a summary): the policy answers it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ale.endpoint.recorder import gist
from ale.errors import ConfigError, DivergedReplay
from ale.messages import Message, ToolSpec
from ale.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Step:
    """One chunk of an expert: the reply before it in its context, what was said since, and the reply. For the first chunk of a
    context there is none before it, and what was said is all of the context."""

    before: Message | None
    observed: tuple[Message, ...]
    reply: Message
    token_ids: tuple[int, ...]
    tools: frozenset[str]


class Prefill:
    """Replays the first `chunks` chunks of `expert`; `ignore` are patterns of what may differ (times, process ids)."""

    def __init__(self, expert: Trajectory, chunks: int, ignore: Sequence[str] = ()) -> None:
        steps = expert_steps(expert)
        if not 0 <= chunks <= len(steps):
            raise ConfigError(
                f"The expert {expert.id} of {expert.task_id} has {len(steps)} chunks; {chunks} cannot be replayed."
            )
        self._expert = expert.id
        self._steps = steps[:chunks]
        self._taken_over_at = steps[chunks] if 0 < chunks < len(steps) else None
        self._ignore = [re.compile(pattern) for pattern in ignore]
        self.done = 0

    @property
    def left(self) -> int:
        """How many chunks are still to be replayed."""
        return len(self._steps) - self.done

    def next(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Step | None:
        """What the expert says to this; None where the policy is to. Raises `DivergedReplay`."""
        step = self._steps[self.done] if self.left else self._taken_over_at
        if step is None or frozenset(tool.name for tool in tools) != step.tools:
            return None
        if not self.left:
            self._taken_over_at = None
            self._check(messages, step)
            return None
        if self.done:
            self._check(messages, step)
        self.done += 1
        return step

    def check_done(self) -> None:
        """Raises `DivergedReplay` where the episode ended before the policy's turn came."""
        if self.left or self._taken_over_at is not None:
            raise DivergedReplay(
                f"The episode ended after {self.done} of the {len(self._steps)} chunks of the expert {self._expert}, before the "
                "policy was asked; rollout.max_calls, max_context and timeout_s count what is replayed too."
            )

    def _check(self, messages: Sequence[Message], step: Step) -> None:
        last = -1
        if step.before is not None:
            last = max((i for i, message in enumerate(messages) if message.role == "assistant"), default=-1)
            if last < 0 or gist(messages[last]) != gist(step.before):
                raise DivergedReplay(
                    f"The agent's context does not go on from chunk {self.done} of the expert {self._expert}."
                )
        now, then = messages[last + 1 :], step.observed
        for seen, wanted in zip(now, then, strict=False):
            if not self._alike(seen, wanted):
                raise DivergedReplay(
                    f"After chunk {self.done} of the expert {self._expert} the environment answered {seen.content!r:.200}, "
                    f"where it had answered {wanted.content!r:.200}. What may differ goes into rollout.replay_ignore."
                )
        if len(now) != len(then):
            raise DivergedReplay(
                f"After chunk {self.done} of the expert {self._expert} came {len(now)} messages, where {len(then)} had come."
            )

    def _alike(self, seen: Message, wanted: Message) -> bool:
        if wanted.role == "assistant":
            return seen.role == wanted.role and gist(seen) == gist(wanted)
        return (seen.role, without(self._ignore, seen.content)) == (wanted.role, without(self._ignore, wanted.content))


def without(patterns: Iterable[re.Pattern[str]], text: str) -> str:
    """The text without what may differ."""
    for pattern in patterns:
        text = pattern.sub("", text)
    return text


def expert_steps(expert: Trajectory) -> list[Step]:
    """The chunks of a trajectory in the order in which they were made, but for side calls."""
    steps = []
    begun: set[int] = set()
    for chunk in expert.turns:
        sequence, turn = expert.sequences[chunk.sequence], chunk.turn
        said = range(turn) if chunk.sequence in begun else ()
        last = max((i for i in said if sequence.messages[i].role == "assistant"), default=-1)
        begun.add(chunk.sequence)
        steps.append(
            Step(
                None if last < 0 else sequence.messages[last], sequence.messages[last + 1 : turn], sequence.messages[turn],
                sequence.token_ids[chunk.start : chunk.end], frozenset(tool.name for tool in sequence.tools),
            )
        )  # fmt: skip
    return steps
