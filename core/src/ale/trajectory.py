"""A trajectory: everything one rollout did, exact to the token.

- A *chunk* is what the model emits between two interactions with the environment: one model response.
  It is the unit of credit in IPA. Chunks are explicit spans, never guessed from runs of a mask.
- A *sequence* is one line of context that the model saw: prompt tokens and sampled tokens in the order of
  the context window. An agent that rewrites its history makes several sequences; each chunk belongs to the
  one sequence that trains it.
- Only the tokens inside trainable chunks may carry loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ale.errors import FaultKind
from ale.messages import ChunkErrorKind, Message, ToolSpec

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class ChunkError:
    """Why a chunk is an error turn (`m_err = 0` in Eq. 2): as seen by the endpoint or told by the scaffold."""

    kind: ChunkErrorKind
    message: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """One model response: the span `[start, end)` of sequence `sequence`.

    `logprobs` and `versions` have one entry a token of the span: the engine's log-probability (natural log,
    temperature 1, nothing cut off) and the policy version that sampled it. A chunk that was not sampled by the
    policy (an expert's, replayed) has `sampled = False` and no log-probabilities. A `side` chunk answered a call beside the
    conversation (a title, a summary): it is kept, and is no part of what is trained on or counted as a step.
    """

    index: int
    sequence: int
    start: int
    end: int
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason
    sampled: bool = True
    error: ChunkError | None = None
    side: bool = False
    turn: int = 0
    """Where its message stands among those of the sequence."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """What the agent's request held beside messages and tools: sampling parameters, which are the run's, and what nobody knows."""

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Sequence:
    """One line of context: its token ids, the messages that it stands for (the last one sampled), and the tools
    that the model was told of."""

    token_ids: tuple[int, ...]
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """What the environment answered to one tool call of chunk `chunk`."""

    chunk: int
    tool: str
    arguments: dict[str, Any]
    text: str
    exit_code: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Score:
    """A reward: `value` is what RL uses, `passed` what success rates count."""

    value: float
    passed: bool
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rollout cannot be trusted or did not end: an infrastructure fault is data, never a zero."""

    kind: FaultKind
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished rollout.

    `policy_version` is the version that *initiated* it (staleness counts from there); `group` ties the rollouts
    of one task in one step together; `reward` is None exactly where `failure` says why; `rejected` is the reason
    for which a filter or a hook kept it out of training.
    """

    id: str
    task_id: str
    split: str
    stage: str
    step: int
    group: str
    seed: int
    policy_version: int
    sequences: tuple[Sequence, ...]
    chunks: tuple[Chunk, ...]
    observations: tuple[Observation, ...] = ()
    reward: Score | None = None
    failure: Failure | None = None
    rejected: str | None = None
    tags: tuple[str, ...] = ()
    ended_by: str = "agent"
    started_at: float = 0.0
    seconds: float = 0.0
    timings: tuple[tuple[str, float], ...] = ()
    made_with: tuple[tuple[str, str], ...] = ()
    """Section and plugin, for the sections in which the run selects among several."""
    start_chunk: int = 0
    """How many of an expert's chunks were replayed before the policy took over."""
    rejected_because: str = ""
    """What `rejected` says, at length: which tool answered what, why there is no reward."""
    changed_echoes: int = 0
    """Model calls in which the agent brought the last reply back in another form."""

    @property
    def groups_for_success(self) -> tuple[str, ...]:
        """What success is counted by: its first tag, and the plugins that were selected for it."""
        return (*self.tags[:1], *(f"{section}:{use}" for section, use in self.made_with))

    @property
    def turns(self) -> tuple[Chunk, ...]:
        """Its chunks but for side calls: what is counted, replayed and trained on."""
        return tuple(chunk for chunk in self.chunks if not chunk.side)

    @property
    def passed(self) -> bool:
        """Whether the hidden tests passed."""
        return self.reward is not None and self.reward.passed

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return sum(len(c) for c in self.chunks if c.sampled)
