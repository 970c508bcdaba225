"""The contracts of run file sections whose keys an installed package defines.

A package registers its model of a section in the entry-point group `ale.sections`, under the section's path in the run
file: `sft = "ale_supervised.sections:SFTSection"`. The model is derived from the section's contract below, and its
fields are the keys. `ale.registry.package_field` finds it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from ale.specs.choice import PluginChoice
from ale.specs.driver import Channel, Lifecycle, PluginConfig
from ale.specs.sandbox import SandboxProvider
from ale.specs.training_stage import TrainingStage
from ale.trajectory import Trajectory


@dataclass(frozen=True)
class Need:
    """`who` needs every plugin of `kind` to have `capability`: a word, or a protocol of its sandboxes."""

    who: str
    kind: str
    capability: str | type

    @property
    def name(self) -> str:
        """The word, or the protocol's name."""
        return self.capability if isinstance(self.capability, str) else self.capability.__name__


class PackageSection(PluginConfig):
    """Base of every section of a package: it is frozen and refuses unknown keys. Give every field a description."""

    def needs(self) -> Iterable[Need]:
        """Yield what the run's plugins must be able to do with these settings."""
        return ()


class ScratchModel(PackageSection, ABC):
    """`model.scratch`: the shape of a small model, and how it is made with random weights."""

    max_length: int = Field(1024, gt=0, description="Longest context, in tokens.")

    @abstractmethod
    def write(self, folder: Path, texts: Sequence[str], seed: int) -> None:
        """Write a Hugging Face folder: a tokenizer trained on `texts`, and a model with random weights that depend on
        the seed alone. Raises `ConfigError` if that is impossible."""


class NamedModels(ABC):
    """`model.path`: a model's folder, or its name on a hub. Both methods raise `ConfigError`."""

    @abstractmethod
    def check(self, path: Path, revision: str | None) -> None:
        """Refuse what is no whole model, or not open to the user. Nothing is downloaded."""

    @abstractmethod
    async def fetch(self, path: Path, revision: str | None, channel: Channel) -> Path:
        """Return the model's folder, after a download if there is none yet."""


class PooledProvider(Lifecycle, SandboxProvider, ABC):
    """A provider that wraps another one and keeps its sandboxes.

    The caller starts and closes the wrapped provider: the pool is opened after it and closed before it."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Return its counters, for the metrics of each step."""


class PoolSection(PackageSection, ABC):
    """`pool`: how the sandboxes of a provider are kept between episodes."""

    @abstractmethod
    def pool(self, provider: SandboxProvider, channel: Channel) -> PooledProvider:
        """Return a pool for a provider that has started."""


class ResumedRun(ABC):
    """`ale run --resume`: which runs may go on."""

    @abstractmethod
    def run_id(self, folder: Path, config: str) -> str:
        """Return the id of the run in a folder. Raises `ConfigError` if it cannot go on with this run file."""

    @abstractmethod
    def checkpoint(self, folder: Path) -> str:
        """Return the name of the run's newest checkpoint; empty if there is none."""


class RolloutFilters(ABC):
    """`rollout.filters`: what judges finished rollouts by the section `rollout` (`max_illegal_calls`, ...). It is no
    section: a run that sets such a key makes one."""

    @abstractmethod
    def __init__(self, config: Any, tools: frozenset[str]) -> None:
        """`config` is the section `rollout`, and `tools` are all those declared deterministic."""

    @abstractmethod
    def rejection(self, trajectory: Trajectory) -> tuple[str, str] | None:
        """Return why a rollout cannot be trusted: a kind to count, and the details. None if it can."""


class EvaluationSection(PackageSection, ABC):
    """`eval`: how the policy is judged before, between and after the stages."""

    every: int = Field(
        15, ge=0, description="Number of RL steps between evaluations; 0: evaluate only before and after RL."
    )

    @abstractmethod
    def splits(self, path: str) -> Sequence[str]:
        """Return the splits that are evaluated of the task source at this path of the run file, such as `tasks`."""

    @abstractmethod
    async def check_tasks(self, bench: Any) -> None:
        """Refuse tasks that do not exist, before any stage works. Raises `ConfigError`. `bench` as for a stage."""

    @abstractmethod
    async def evaluate(self, bench: Any, label: str, step: int) -> None:
        """Judge the policy as it is now, and put the result into `bench.evaluations[label]`; without a label, the run
        trains nothing. Raises `AleError` if no episode could be run."""


class StageSection(PackageSection, ABC):
    """`cpt`, `sft` and `rl`: a training stage."""

    @abstractmethod
    def stage(self) -> TrainingStage:
        """Return a new instance of the stage; each run makes one."""

    def algorithms(self) -> Sequence[tuple[str, PluginChoice]]:
        """Return the algorithms that it trains with: the path of each in the run file, and the choice there."""
        return ()


class LoopSection(StageSection, ABC):
    """`rl`: the loop of rollouts and updates, whose halves can also be run alone (`ale run --only`)."""

    @classmethod
    @abstractmethod
    def rollout_half(cls, given: LoopSection | None, source: Path | None) -> TrainingStage:
        """Return the stage that only makes rollouts, with the policy of the run folder `source` if there is one;
        `given` is this section of the run file, if it has one."""

    @classmethod
    @abstractmethod
    def training_half(cls, given: LoopSection | None, source: Path) -> TrainingStage:
        """Return the stage that only trains, on the rollouts of the run folder `source`."""
