"""The cluster contract: on which nodes the parts of a run work. Without a cluster they all work in one process.

The run stays one controller. It opens the cluster first and closes it last, and asks it for the engine, for the places
of the trainer's ranks (`DriverContext.ranks`), and for episodes that are run elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ale.specs.choice import PluginChoice
from ale.specs.driver import Driver
from ale.specs.engine import InferenceEngine
from ale.specs.ranks import RankPlaces

ConfigT = TypeVar("ConfigT")
"""The configuration of episodes: `ale.config.episode.EpisodeConfig`, which is on a higher floor than this contract."""
EpisodesT = TypeVar("EpisodesT")
"""Episodes whose drivers have started, and their sandbox pools: `ale.rollout.open_episodes.OpenEpisodes`."""


@dataclass(frozen=True)
class EnginePlan:
    """The engine that a run asks of its cluster."""

    choice: PluginChoice
    check: Callable[[Driver], None]
    """It refuses a started engine that lacks what the run needs. Raises `PluginError`."""
    beside_trainer: bool = True
    """Whether the run has a trainer, whose ranks need room too."""
    multiplexed: int = 0
    """How many engines lie on the trainer's devices (`rl.multiplex`)."""


class Cluster(ABC, Generic[ConfigT, EpisodesT]):
    """It has room for the run from its `start` on."""

    @property
    @abstractmethod
    def ranks(self) -> RankPlaces | None:
        """What the trainer's driver gets as `DriverContext.ranks`; None: its ranks are processes beside the run."""

    @abstractmethod
    async def start_engine(self, plan: EnginePlan) -> InferenceEngine:
        """Return the engine, started; the cluster closes it. Raises `AleError`."""

    @abstractmethod
    async def place_episodes(self, config: ConfigT, here: EpisodesT) -> EpisodesT:
        """Return the episodes of a run as workers of the cluster make them, with their sandbox pools; those of the
        run's own process (`here`) if it has no workers. Raises `AleError`."""
