"""A trajectory records everything that one rollout did, exact to the token.

- A *chunk* is what the model emits between two interactions with the environment: one model response. It is the unit of
  credit in IPA. Chunks are explicit spans; they are never guessed from runs of a mask.
- A *sequence* is one context that the model saw: prompt tokens and sampled tokens in the order of the context window.
  An agent that rewrites its history makes several sequences; each chunk belongs to the one sequence that trains it.
- Only the tokens inside trainable chunks may carry loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ale.errors import ErrorKind
from ale.messages import ChunkErrorKind, Message, ToolSpec, short_repr

FinishReason = Literal["stop", "length", "abort"]


CUT_OFF = frozenset({"budget", "timeout", "failure", "max_turns", "agent_timeout"})
"""Values of `Trajectory.ended_by` for an episode that the agent did not end by itself."""


@dataclass(frozen=True, slots=True)
class ChunkError:
    """It says why a chunk is an error turn (`m_err = 0` in Eq. 2), found by the session or reported by the scaffold."""

    kind: ChunkErrorKind
    message: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """One model response: the span `[start, end)` of sequence `sequence`.

    `logprobs` and `versions` have one entry for each token of the span: the engine's log-probability (natural log,
    temperature 1, nothing cut off) and the policy version that sampled it. A chunk that the policy did not sample (a
    replayed one of an expert) has `sampled = False` and no log-probabilities. A `side` chunk answered a side call (a
    title, a summary): it is stored, but not trained on and not counted as a step."""

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
    """The index of its message among the messages of the sequence."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the agent's request beside messages and tools: sampling parameters (the run's are used) and unknown
    fields."""
    called_at: float = field(default=0.0, compare=False)
    """When its call came (Unix time), and how long the model took to answer; two equal chunks may differ in both."""
    seconds: float = field(default=0.0, compare=False)

    __repr__ = short_repr

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Sequence:
    """One context: its token ids, its messages (the last one is sampled), and the tools that the model could call."""

    token_ids: tuple[int, ...]
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Observation:
    """The environment's answer to one tool call of chunk `chunk`."""

    chunk: int
    tool: str
    arguments: dict[str, Any]
    text: str
    exit_code: int | None
    seconds: float
    reward: float | None = None
    """The environment's reward for this step, if it gives one."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Score:
    """The result of a reward plugin: RL uses `value`, and success rates count `passed`."""

    value: float
    passed: bool
    detail: str = ""
    seconds: float = 0.0
    by_chunk: tuple[float, ...] = ()
    """Rewards of single steps: one number for each of `Trajectory.chunks`, a 0 for side calls; empty if there are
    none. `value` stays the reward of the whole episode, by default their sum."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The named rewards of which `value` is made, and other numbers about the episode; the metrics show their means."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Failure:
    """It says why a rollout cannot be trusted or did not end: an infrastructure fault is data, never a zero."""

    kind: ErrorKind
    message: str
    retryable: bool = False

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished rollout.

    `policy_version` is the version that *started* it (staleness counts from there); `group` ties the rollouts of one
    task in one step together; `reward` is None exactly if `failure` says why; `rejected` is the reason for which a
    filter or a hook kept it out of training.
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
    """(Section, plugin) for each section in which the run selects among several plugins."""
    start_chunk: int = 0
    """The number of chunks that its start answered (an expert's, replayed) before the policy took over."""
    rejected_because: str = ""
    """The details of `rejected`: which tool answered what, or why there is no reward."""
    changed_echoes: int = 0
    """The number of model calls in which the agent sent the last reply back in a changed form."""
    template_rewrites: int = 0
    """The number of model calls before which the chat template rewrote what the model saw and sampled, as templates do
    that drop earlier thoughts; each begins a new sequence."""

    def __repr__(self) -> str:
        about = {"id": self.id, "task_id": self.task_id, "stage": self.stage, "step": self.step}
        about["reward"] = None if self.reward is None else self.reward.value
        about |= {"turns": len(self.turns), "sampled_tokens": self.sampled_tokens, "ended_by": self.ended_by}
        about |= {"rejected": self.rejected} if self.rejected else {}
        return f"Trajectory({', '.join(f'{name}={value!r:.72}' for name, value in about.items())})"

    @property
    def groups_for_success(self) -> tuple[str, ...]:
        """Return the groups in which its success counts: its first tag, and the plugins that were selected for it."""
        return (*self.tags[:1], *(f"{section}:{use}" for section, use in self.made_with))

    @property
    def turns(self) -> tuple[Chunk, ...]:
        """Its chunks without side calls: these are counted, replayed and trained on."""
        return tuple(chunk for chunk in self.chunks if not chunk.side)

    @property
    def passed(self) -> bool:
        """Whether the hidden tests passed."""
        return self.reward is not None and self.reward.passed

    @property
    def sampled_tokens(self) -> int:
        """The number of tokens that the policy sampled."""
        return sum(len(c) for c in self.chunks if c.sampled)
