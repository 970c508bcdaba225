"""This module defines the keys of the section `rl`."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from ale.specs.choice import Section


class RLConfig(Section):
    """Reinforcement learning."""

    steps: int = Field(45, ge=0, description="RL steps. Each samples rollouts and updates the policy.")
    prompts_per_step: int = Field(
        8, gt=0, description="Tasks per step. The algorithm's group_size is the number of rollouts of each."
    )
    instances: Path | None = Field(
        None,
        description="Train only on these tasks of the split `train`: the report of `ale tasks select`, or a JSON list "
        "of ids. null: on all.",
    )
    resample_even_groups: int = Field(
        0,
        ge=0,
        description=(
            "Dynamic sampling: the most times per step that a task whose rollouts all got the same reward is "
            "replaced by the next task; 0: such groups are kept."
        ),
    )
    updates_per_step: int = Field(
        1, gt=0, description="Optimizer steps per RL step; each uses a part of the step's groups."
    )
    epochs: int = Field(
        1, gt=0, description="Passes over the rollouts of a step; old log-probabilities stay those before the first."
    )
    lr: float | None = Field(
        None,
        gt=0,
        description=(
            "Learning rate of the first step; it falls linearly to a tenth at the last. null: the trainer's own, "
            "constant."
        ),
    )
    async_ratio: int = Field(
        0,
        ge=0,
        description=(
            "Bound on staleness: a policy is trained on rollouts that began at most this many versions before it. "
            "Rollouts and training overlap; 0: they take turns, and every rollout is of the newest policy."
        ),
    )
    ahead: int | None = Field(
        None,
        ge=0,
        description=(
            "How many batches sampling may be ahead of training, at most async_ratio. What async_ratio is above it is "
            "the time that a slow rollout has. null: 1, or 0 with async_ratio 0."
        ),
    )
    scoring_concurrency: int | None = Field(
        None,
        gt=0,
        description=(
            "Most rewards that are computed at the same time. An episode that is scored holds no place of "
            "rollout.concurrency, only its sandbox. null: as many as rollout.concurrency, fewer if pool.max_sandboxes "
            "leaves room for fewer."
        ),
    )
    multiplex: int = Field(
        0,
        ge=0,
        description=(
            "How many of the engines lie on the trainer's devices: they sample while the trainer waits and sleep while "
            "it trains. The last ones of cluster.engine.replicas, or of the engine's own replicas; 0: none."
        ),
    )
    patience_s: float = Field(
        600.0,
        gt=0,
        description=(
            "Asynchronous runs: how long the trainer waits for single slow groups without which staleness would exceed "
            "async_ratio. Then they are dropped as late, and their tasks are tried once more."
        ),
    )
    stall_s: float = Field(
        1800.0,
        ge=0,
        description=(
            "Seconds without any progress (a token, a rollout, an update) after which the run says what hangs and "
            "mends it once; after as many again it fails. It must be more than the longest tool call and update "
            "take; 0: never."
        ),
    )
    min_entropy: float = Field(
        0.02,
        ge=0,
        description="Stop the run when the policy's mean entropy (nats) stays below this for 5 steps while success "
        "from the beginning falls below half of its best; 0: never.",
    )
    probe_limit: float | None = Field(
        None,
        gt=0,
        description=(
            "Before the first step, and after the first update, engine and trainer compute the log-probabilities of "
            "the same tokens: the run stops if they differ by more nats than this on average. null: 1e-4 in float32, "
            "0.02 in bfloat16 or float16, 0.1 for a quantized engine."
        ),
    )
    checkpoint_every: int = Field(
        10,
        ge=0,
        description=(
            "Steps between checkpoints, from which a run goes on (`ale run --resume`). One more is written after the "
            "last step, and when the run is stopped or fails; 0: only that one."
        ),
    )
    checkpoint_keep: int = Field(2, ge=0, description="How many checkpoints are kept, the newest ones; 0: all.")

    @property
    def batches_ahead(self) -> int:
        """`ahead`, or its default."""
        return min(1, self.async_ratio) if self.ahead is None else self.ahead

    @model_validator(mode="after")
    def _sampling_is_not_further_ahead_than_staleness_allows(self) -> Self:
        if self.ahead is not None and self.ahead > self.async_ratio:
            raise ValueError(
                f"ahead ({self.ahead}) must not be above async_ratio ({self.async_ratio}): what is sampled further "
                "ahead could not be trained on; lower ahead or raise async_ratio"
            )
        if not self.async_ratio and "patience_s" in self.model_fields_set:
            raise ValueError("patience_s does nothing with async_ratio 0, which waits for every rollout; leave it out")
        return self
