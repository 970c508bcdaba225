"""The core loads the section `rl` from here: its keys, its needs, its training stage, and the halves of that stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ale.specs.package_sections import LoopSection, Need
from ale.specs.training_stage import TrainingStage
from ale_rl.config import RLConfig


class RLSection(RLConfig, LoopSection):
    """`rl`."""

    def stage(self) -> TrainingStage:
        """See `StageSection.stage`."""
        from ale_rl.stages import Reinforcement  # it imports numpy, which reading a run file does not need

        return Reinforcement(self)

    def needs(self) -> Iterator[Need]:
        """See `PackageSection.needs`."""
        yield Need("rl", "engine", "real_tokens")

    @classmethod
    def rollout_half(cls, given: LoopSection | None, source: Path | None) -> TrainingStage:
        """See `LoopSection.rollout_half`."""
        from ale_rl.stages import RolloutHalf

        return RolloutHalf(given if isinstance(given, RLConfig) else RLConfig(steps=1), source)

    @classmethod
    def training_half(cls, given: LoopSection | None, source: Path) -> TrainingStage:
        """See `LoopSection.training_half`."""
        from ale_rl.stages import TrainingHalf

        return TrainingHalf(given if isinstance(given, RLConfig) else RLConfig(), source)
