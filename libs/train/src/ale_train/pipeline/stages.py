"""Makes the training stages of a run from its sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ale.errors import ConfigError
from ale_train.config.rl import RLConfig
from ale_train.config.run import RunConfig
from ale_train.rl.fork import Fork
from ale_train.rl.stages import Reinforcement, RolloutOnly, TrainOnly
from ale_train.supervised.stages import FineTuning, Pretraining
from ale_train.workbench.training_stage import TrainingStage

Only = Literal["all", "rollout", "train"]
"""The whole run, or half of its loop."""


@dataclass(frozen=True)
class Stages:
    """The stages of a run, each made for this run alone."""

    before: Mapping[str, TrainingStage] = field(default_factory=dict)
    """The supervised stages by name, in their order."""
    loop: TrainingStage | None = None
    """Reinforcement learning, or half of its loop."""

    def __iter__(self) -> Iterator[TrainingStage]:
        yield from self.before.values()
        if self.loop is not None:
            yield self.loop


def read_half(only: str) -> Only:
    """Return the value of the option `--only`. Raises `ConfigError`."""
    if only not in ("all", "rollout", "train"):
        raise ConfigError(f"--only takes 'rollout' or 'train', not '{only}'.")
    return only  # type: ignore[return-value]


def make_stages(run: RunConfig, only: Only, source: Path | None, fork: Fork | None = None) -> Stages:
    """Return the stages of the run, or half of its loop. `source` is the run folder from which it takes its policy or
    its rollouts. A `fork` begins after the supervised stages."""
    if fork is not None:
        return Stages(loop=Reinforcement(run.rl or RLConfig(), fork))
    if only == "rollout":
        return Stages(loop=RolloutOnly(run.rl or RLConfig(steps=1), source))
    if only == "train":
        assert source is not None, "checked before"
        return Stages(loop=TrainOnly(run.rl or RLConfig(), source))
    before: dict[str, TrainingStage] = {}
    if run.cpt is not None:
        before["cpt"] = Pretraining(run.cpt)
    if run.sft is not None:
        before["sft"] = FineTuning(run.sft)
    return Stages(before, None if run.rl is None else Reinforcement(run.rl))
