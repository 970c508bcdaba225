"""Replays an expert's replies: they answer the first calls of an episode verbatim, and the agent really acts on them.

1. The k-th call of the conversation gets the expert's k-th reply: its exact tokens if they are in the policy's
   vocabulary, else its text. After `chunks` replies the policy takes over (chunk-level initialized resampling,
   3.2.4.4).
2. Between two replies are the environment's answers. If they differ from what the expert saw, the replay has
   *diverged*: the policy would continue from a state that the expert never had. The episode ends and is not trained on.
   The answer to the last replayed chunk is checked too, at the policy's first call. An agent that begins another
   context (a summary, a sub-agent) must do so where it did for the expert, with the same content.
3. A call with other tools than the expert's is a side call (a title, a summary): the policy answers it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ale.errors import ConfigError, StartDiverged
from ale.messages import Message, ToolSpec
from ale.rollout.contradictions import remove_patterns
from ale.session.recorder import canonical_form
from ale.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Step:
    """One chunk of an expert: the previous reply in its context, the messages since, and the reply. The first chunk of
    a context has no previous reply, and its messages are the whole context."""

    before: Message | None
    observed: tuple[Message, ...]
    reply: Message
    token_ids: tuple[int, ...]
    tools: frozenset[str]


class ExpertReplies:
    """Replays the first `chunks` chunks of `expert`; `ignore` are patterns of text that may differ (times, process
    ids)."""

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
        """Return how many chunks are still to be replayed."""
        return len(self._steps) - self.done

    def next(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Step | None:
        """Return the expert's reply to a call; None if the policy is to answer it. Raises `StartDiverged`."""
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
        """Raise `StartDiverged` if the episode ended before the policy was asked."""
        if self.left or self._taken_over_at is not None:
            raise StartDiverged(
                f"The episode ended after {self.done} of the {len(self._steps)} chunks of the expert {self._expert}, "
                "before the policy was asked; rollout.max_calls, max_context and timeout_s include replayed chunks."
            )

    def _check(self, messages: Sequence[Message], step: Step) -> None:
        last = -1
        if step.before is not None:
            last = max((i for i, message in enumerate(messages) if message.role == "assistant"), default=-1)
            if last < 0 or canonical_form(messages[last]) != canonical_form(step.before):
                raise StartDiverged(
                    f"The agent's context does not continue chunk {self.done} of the expert {self._expert}."
                )
        now, then = messages[last + 1 :], step.observed
        for seen, wanted in zip(now, then, strict=False):
            if not self._alike(seen, wanted):
                raise StartDiverged(
                    f"After chunk {self.done} of the expert {self._expert} the environment answered "
                    f"{seen.content!r:.200}, "
                    f"where it had answered {wanted.content!r:.200}. What may differ goes into replay_ignore."
                )
        if len(now) != len(then):
            raise StartDiverged(
                f"Chunk {self.done} of the expert {self._expert} was followed by {len(now)} messages; it had been "
                f"{len(then)}."
            )

    def _alike(self, seen: Message, wanted: Message) -> bool:
        if wanted.role == "assistant":
            return seen.role == wanted.role and canonical_form(seen) == canonical_form(wanted)
        return (seen.role, remove_patterns(self._ignore, seen.content)) == (
            wanted.role,
            remove_patterns(self._ignore, wanted.content),
        )


def expert_steps(expert: Trajectory) -> list[Step]:
    """List the chunks of a trajectory in the order in which they were made, without side calls."""
    steps = []
    begun: set[int] = set()
    for chunk in expert.turns:
        sequence, turn = expert.sequences[chunk.sequence], chunk.turn
        earlier = range(turn) if chunk.sequence in begun else ()
        last = max((i for i in earlier if sequence.messages[i].role == "assistant"), default=-1)
        begun.add(chunk.sequence)
        steps.append(
            Step(
                before=None if last < 0 else sequence.messages[last],
                observed=sequence.messages[last + 1 : turn],
                reply=sequence.messages[turn],
                token_ids=sequence.token_ids[chunk.start : chunk.end],
                tools=frozenset(tool.name for tool in sequence.tools),
            )
        )
    return steps
