"""The trainer contract: a backend that knows no algorithm.

A `TrainBatch` is *packed*: all sequences stand one after the other in flat arrays of length N; nothing is padded
here. How it is cut into micro-batches is the backend's affair, with one promise: the sequences of one trajectory
stay together, so a loss may look across a trajectory. The algorithm sets `normalizer` for the whole batch, so the
sum of the micro-batch losses is the loss, whichever way the batch is cut.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from ale.errors import PluginError
from ale.specs.driver import Driver
from ale.specs.engine import PolicyVersion


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """One row a trained chunk (C rows). `returns` is G_c; `position` counts from 0 to `count - 1` in its trajectory.

    `sampled` is False for a chunk that the policy did not sample (an expert's, a demonstrator's): it has no engine
    log-probabilities. Left out, all were sampled.
    """

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
class TrainBatch:
    """Packed sequences. Shapes: N tokens, S sequences, C chunks.

    `chunk_ids[i]` is the row of the token's chunk in `chunks`, -1 where the token carries no loss (prompt, tool
    output, template, masked chunk). `engine_logprobs`, `old_logprobs` and `reference_logprobs` are 0 there.
    Log-probabilities are aligned with tokens: entry i is log p(token i | the tokens before it in its sequence).
    """

    token_ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    trajectory: npt.NDArray[np.int64]
    """Index of the trajectory of each sequence, shape [S], non-decreasing."""
    chunk_ids: npt.NDArray[np.int64]
    engine_logprobs: npt.NDArray[np.float32]
    chunks: ChunkTable
    normalizer: float
    old_logprobs: npt.NDArray[np.float32] | None = None
    reference_logprobs: npt.NDArray[np.float32] | None = None
    """Those of the frozen policy of `TrainerBackend.keep_reference`, where the algorithm wants them."""


@dataclass(frozen=True, slots=True)
class LossInput:
    """What a loss sees of one micro-batch: tensors of the backend, the M tokens that carry loss, in the batch's order.

    Tokens without loss (`TrainBatch.chunk_ids` -1) are not among them, so every `chunk_ids` is at least 0.
    `logprobs` [M] carries the gradient; `entropy` [M] (nats) does not. `chunk_ids` [M] index `chunks`, whose
    columns are tensors here, and which is the table of the *whole* batch. `old_logprobs` is None where the batch has
    none: the loss then decides whether the engine's will do. `reference_logprobs` [M] is None where the batch has none.
    """

    logprobs: Any
    entropy: Any
    old_logprobs: Any
    engine_logprobs: Any
    chunk_ids: Any
    chunks: ChunkTensors
    normalizer: float
    reference_logprobs: Any = None


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
    """`loss` is a scalar tensor; `sums` are detached scalars that add up over micro-batches and ranks, `maxima` such of
    which the largest counts.

    What is reported is `Algorithm.metrics` of the totals, such as `sums[x] / sums[weight]` for a mean.
    """

    loss: Any
    sums: Mapping[str, Any]
    maxima: Mapping[str, Any] = field(default_factory=dict)


class LossFunction(Protocol):
    """`Algorithm.loss`, as a backend sees it."""

    def __call__(self, inputs: LossInput) -> LossOutput: ...


class ScratchModel(BaseModel):
    """A small decoder to be made from nothing (random weights)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    architecture: str = Field("qwen2", pattern="^(llama|qwen2)$", description="Shape of the decoder: llama or qwen2.")
    hidden_size: int = Field(96, gt=0, description="Width.")
    layers: int = Field(4, gt=0, description="Decoder layers.")
    heads: int = Field(4, gt=0, description="Attention heads.")
    kv_heads: int = Field(2, gt=0, description="Key/value heads.")
    intermediate_size: int | None = Field(
        None, gt=0, description="Width of the feed-forward part; null: 8/3 of the width, rounded to 16."
    )
    vocab_size: int = Field(640, ge=300, description="Tokens of the byte-level BPE, special ones included.")
    max_length: int = Field(1024, gt=0, description="Longest context, tokens.")


class TrainerBackend(Driver, ABC):
    """Holds the policy that is being updated."""

    @abstractmethod
    async def create_model(self, model: ScratchModel, folder: Path) -> None:
        """Write a randomly initialised model (seeded by the run) into `folder`, which already holds the tokenizer."""

    @abstractmethod
    async def load_model(self, folder: Path) -> None:
        """Load a Hugging Face folder as the policy; resets the optimizer and sets the version to 0."""

    @abstractmethod
    async def logprobs(self, batch: TrainBatch) -> npt.NDArray[np.float32]:
        """Log-probability (nats) under the current weights of each token that carries loss, given the tokens of its
        sequence before it; shape [N], float32; 0 elsewhere."""

    @abstractmethod
    async def update(
        self, batch: TrainBatch, loss: LossFunction, *, lr: float | None = None, weight_decay: float | None = None
    ) -> dict[str, float]:
        """One optimizer step. `lr` and `weight_decay` override the configured ones for this step; decay, of `lr * weight_decay`
        of a weight, is of matrices alone.

        Returns the summed `LossOutput.sums`, the largest of its `maxima`, and `loss`, `grad_norm` (before clipping), `lr`,
        `tokens`, `padding_waste` (share of computed positions that were padding), `seconds`.
        Raises `TrainerError` where loss or gradient is not finite (the weights are then unchanged).
        """

    @abstractmethod
    async def publish(self) -> PolicyVersion:
        """The current weights under a new version number, for engines to load. They are a copy: later updates do not
        change them."""

    async def keep_reference(self) -> None:
        """Keep a frozen copy of the current weights as the reference policy; a later call replaces it, `load_model`
        forgets it. Of a trainer with the capability `reference`; the others raise `PluginError`."""
        raise self._without_reference()

    async def reference_logprobs(self, batch: TrainBatch) -> npt.NDArray[np.float32]:
        """What `logprobs` would give under the weights of the reference policy; [N], float32, 0 without loss.

        Raises `TrainerError` before `keep_reference`, and `PluginError` where the trainer is not capable of `reference`.
        """
        raise self._without_reference()

    def _without_reference(self) -> PluginError:
        return PluginError(
            f"The trainer {type(self).__name__} keeps no reference policy; set the algorithm's kl_coef to 0, or use a "
            "trainer with the capability 'reference' ('ale plugins list' names them)."
        )

    @abstractmethod
    async def save(self, folder: Path) -> None:
        """Write weights (Hugging Face format), optimizer, RNG state, and the reference policy where there is one; atomic:
        the folder is whole or absent."""

    @abstractmethod
    async def load(self, folder: Path) -> None:
        """Read what `save` wrote, the version too. Raises `TrainerError` or `ConfigError`, and changes nothing, where a
        folder is none, or damaged."""
