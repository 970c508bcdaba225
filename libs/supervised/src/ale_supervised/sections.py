"""The core loads the sections `cpt` and `sft` from here: their keys, their needs, and the stages that they make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ale.specs.choice import PluginChoice
from ale.specs.package_sections import Need, StageSection
from ale.specs.training_stage import TrainingStage
from ale_supervised.config import CPTConfig, SFTConfig


class CPTSection(CPTConfig, StageSection):
    """`cpt`."""

    def stage(self) -> TrainingStage:
        """See `StageSection.stage`."""
        from ale_supervised.stages import Pretraining  # it imports numpy, which reading a run file does not need

        return Pretraining(self)

    def algorithms(self) -> Sequence[tuple[str, PluginChoice]]:
        """See `StageSection.algorithms`."""
        return [("cpt.algorithm", self.algorithm)]


class SFTSection(SFTConfig, StageSection):
    """`sft`; several of its stages may share an algorithm."""

    def stage(self) -> TrainingStage:
        """See `StageSection.stage`."""
        from ale_supervised.stages import WarmStart

        return WarmStart(self)

    def needs(self) -> Iterator[Need]:
        """See `PackageSection.needs`."""
        if self.runs_demonstrations:
            yield Need("sft.demonstrations", "tasks", "demonstrations")
