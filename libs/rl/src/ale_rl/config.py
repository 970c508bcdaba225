"""This module defines the keys of the section `rl`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

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
    simulated_lag: int = Field(
        0,
        ge=0,
        description=(
            "Train on rollouts that were sampled this many steps earlier, as an asynchronous run would; 0: on "
            "those of the same step."
        ),
    )
    min_entropy: float = Field(
        0.02,
        ge=0,
        description="Stop the run when the policy's mean entropy (nats) stays below this for 5 steps while success "
        "from the beginning falls below half of its best; 0: never.",
    )
    checkpoint_every: int = Field(
        0, ge=0, description="Number of steps between checkpoints of the trainer's state; 0: only one at the end."
    )
