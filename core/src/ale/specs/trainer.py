"""The trainer contract: a trainer is a backend that knows no algorithm.

A `TrainBatch` is *packed*: all sequences are joined in flat arrays of length N, without padding. The backend decides
how to cut it into micro-batches, with one promise: a loss is shown whole trajectories, so it may look across one.
`normalizer` is one number for the whole batch of an update, so the sum of the losses that are shown a part of it is the
loss, however the batch is cut.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ale.messages import short_repr
from ale.specs.engine import PolicyVersion


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """One row for each trained chunk (C rows). `position` counts from 0 to `count - 1` in its trajectory. `returns` is
    G_c; it is 0 if the chunk has no policy gradient and is at most held near the reference.

    `sampled` is False for a chunk that the policy did not sample (an expert's, a demonstrator's): it has no engine
    log-probabilities. By default all are True."""

    trajectory: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    returns: npt.NDArray[np.float32]
    positive: npt.NDArray[np.bool_]
    sampled: npt.NDArray[np.bool_] = None  # type: ignore[assignment]  # never None once made

    def __post_init__(self) -> None:
        if self.sampled is None:
            object.__setattr__(self, "sampled", np.ones(len(self.returns), dtype=np.bool_))


@dataclass(frozen=True, slots=True)
class TrajectoryTable:
    """One row for each trajectory (T rows) that a batch was made from, also for those without a token with loss.

    The rollouts of a step are cut into updates between groups. `weight` is the trajectory's part of the normalizer: a
    trajectory of an even group may have a weight although none of its tokens are packed."""

    group: npt.NDArray[np.int64]
    weight: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Packed sequences. Shapes: N tokens, S sequences, C chunks.

    `chunk_ids[i]` is the row of the token's chunk in `chunks`, or -1 if the token carries no loss (prompt, tool output,
    template, masked chunk). `engine_logprobs`, `old_logprobs` and `reference_logprobs` are 0 there. Log-probabilities
    are aligned with tokens: entry i is log p(token i | the tokens before it in its sequence). `versions` has the policy
    version that sampled each token with loss, -1 elsewhere; None if the batch was made without them."""

    token_ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    trajectory: npt.NDArray[np.int64]
    """The row of `trajectories` of each sequence, shape [S], non-decreasing."""
    chunk_ids: npt.NDArray[np.int64]
    engine_logprobs: npt.NDArray[np.float32]
    chunks: ChunkTable
    normalizer: float
    """Z, by which the sum over the tokens with loss is divided."""
    old_logprobs: npt.NDArray[np.float32] | None = None
    reference_logprobs: npt.NDArray[np.float32] | None = None
    """The log-probabilities of the trainer's frozen reference policy, if the algorithm wants them."""
    reference_normalizer: float | None = None
    """The divisor of the sum over the tokens that are held near the reference, if it is not `normalizer`."""
    trajectories: TrajectoryTable | None = None
    """None for a batch that is not cut into updates."""
    versions: npt.NDArray[np.int64] | None = None
    columns: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    """More numbers of each token, each [N], by name; a loss finds them in `LossInput.columns`."""
    temperature: float = 1.0
    """All log-probabilities but the engine's, and entropies, are of logits divided by this."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The algorithm's report on how it made the batch (such as what it left out); stored with the step's metrics."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class LossInput:
    """The arguments of a loss for one micro-batch: the backend's tensors for the M tokens with loss, in the batch's
    order.

    Tokens without loss (`TrainBatch.chunk_ids` -1) are not among them, so every `chunk_ids` is at least 0. `logprobs`
    [M] carries the gradient; `entropy` [M] (nats) does if `Loss.entropy_gradient` is true. `chunk_ids` [M] index
    `chunks`, the table of the *whole* batch, as tensors. `old_logprobs` is None if the batch has none: the loss then
    decides whether to use the engine's. `reference_logprobs` [M] is None if the batch has none. `normalizer` and
    `reference_normalizer` are the batch's, and so are `columns`, each [M]. `values` [M] are the value head's, with
    gradient; None without one."""

    logprobs: Any
    entropy: Any
    old_logprobs: Any
    engine_logprobs: Any
    chunk_ids: Any
    chunks: ChunkTensors
    normalizer: float
    reference_normalizer: float | None = None
    reference_logprobs: Any = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    values: Any = None


@dataclass(frozen=True, slots=True)
class ChunkTensors:
    """`ChunkTable` as tensors of the backend, each of shape [C]."""

    trajectory: Any
    position: Any
    count: Any
    returns: Any
    positive: Any
    sampled: Any


@dataclass(frozen=True, slots=True)
class LossOutput:
    """`loss` is a scalar tensor; `sums` are detached scalars that add up over micro-batches and ranks; of `maxima`,
    also detached scalars, the largest counts. `Loss.metrics` turns the totals into what is reported, such as `sums[x] /
    sums[weight]` for a mean."""

    loss: Any
    sums: Mapping[str, Any]
    maxima: Mapping[str, Any] = field(default_factory=dict)


class Loss(ABC):
    """The function that an update minimises. Make it a frozen dataclass of settings.

    A trainer may pickle it into other processes, so it must not hold the algorithm, a context or tensors, and it must
    import the tensor library only when it is called."""

    @property
    def entropy_gradient(self) -> bool:
        """Whether the loss has a gradient through `LossInput.entropy`, as an entropy bonus does. The trainer gives the
        entropy no gradient where it has none."""
        return False

    @abstractmethod
    def __call__(self, inputs: LossInput) -> LossOutput:
        """Compute the loss of one micro-batch; the losses of the micro-batches add up."""

    def normalize(self, batch: TrainBatch) -> TrainBatch:
        """Return the batch of one update with its normalizers set. The run calls it once log-probabilities are known.

        A loss whose mask depends on log-probabilities subtracts the masked tokens from `normalizer` here, where the
        batch is whole, so that all micro-batches and ranks share one number. By default nothing changes."""
        return batch

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Return readable metrics from the totals that `TrainerBackend.update` returned.

        `entropy` is the policy's mean entropy in nats over the tokens with loss. `rl.min_entropy` is compared with it,
        and the progress display and the report show it; without it nothing guards a run against entropy collapse."""
        return dict(totals)


PolicyRole = Literal["current", "reference"]
"""The policy that is being updated, or the frozen one that it is compared with."""


class TrainerBackend(ABC):
    """Holds the policy that is being updated and, if a run wants one, a frozen reference policy beside it.

    Both are loaded from folders: the run loads the folder of the policy with which RL begins as `reference`. So one
    driver can hide many ranks, each of which reads its part of the folder.
    """

    transports: tuple[str, ...] = ()
    """The transports by which it publishes weights (`ale.specs.engine.Ticket.transport`), the best one first. A run
    uses the first that its engine names too. An object may name fewer than its class, as its settings allow."""

    @abstractmethod
    async def load(self, folder: Path, policy: PolicyRole = "current") -> None:
        """Load a Hugging Face folder. As `current` it becomes the policy: optimizer and version start again, and the
        reference is dropped. As `reference` it becomes the frozen policy and replaces an earlier one.

        Raises `TrainerError` or `ConfigError`, and changes nothing, if the folder holds no model."""

    @abstractmethod
    async def logprobs(self, batch: TrainBatch, policy: PolicyRole = "current") -> npt.NDArray[np.float32]:
        """Return the log-probability (nats) under that policy of each token that carries loss, given the tokens of its
        sequence before it; shape [N], float32; 0 elsewhere. Raises `TrainerError` if no such policy was loaded."""

    async def values(self, batch: TrainBatch) -> npt.NDArray[np.float32]:
        """Return what the value head expects of the state before each token with loss; [N], 0 elsewhere. Only a trainer
        with the capability `values` has it, and trains it beside the policy by `LossInput.values`."""
        raise NotImplementedError

    @abstractmethod
    async def update(
        self, batch: TrainBatch, loss: Loss, *, lr: float | None = None, weight_decay: float | None = None
    ) -> dict[str, float]:
        """Make one optimizer step. `lr` and `weight_decay` override the configured ones for this step; decay, by `lr *
        weight_decay` of a weight, applies to matrices only.

        Returns the summed `LossOutput.sums`, the largest of its `maxima`, and `loss`, `grad_norm` (before clipping),
        `lr`, `tokens`, `padding_waste` (share of computed positions that were padding), `seconds`. Raises
        `TrainerError` if loss or gradient is not finite (the weights are then unchanged)."""

    @abstractmethod
    async def publish(self, transport: str, folder: Path) -> PolicyVersion:
        """Publish the current weights under the next version number, with a ticket of `transport`; later updates do not
        change what the ticket leads to. Files go to `folder/<version>`, complete or not at all; the caller removes
        them. Raises `TrainerError` for a transport that the trainer does not name."""

    async def sleep(self) -> bool:
        """Give back its devices' memory until the next call, and return whether any was; by default, none is."""
        return False

    @abstractmethod
    async def save(self, folder: Path) -> None:
        """Write a checkpoint: weights (Hugging Face format), optimizer, random state, version, and the reference policy
        if there is one. It is atomic: the folder is complete or absent."""

    @abstractmethod
    async def restore(self, folder: Path) -> None:
        """Continue from what `save` wrote. Raises `TrainerError` or `ConfigError`, and changes nothing, if a folder is
        no checkpoint, a damaged one, or one of a trainer whose settings give its weights another meaning."""
