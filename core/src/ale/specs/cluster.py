"""The cluster contract: on which nodes the parts of a run work. Without a cluster they all work in one process.

The run stays one controller. It opens the cluster first and closes it last, and asks it for the engine, for the places
of the trainer's ranks (`DriverContext.ranks`), and for episodes that are run elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from ale.specs.engine import InferenceEngine


class Cluster(ABC):
    """It has room for the run from its `start` on."""

    @property
    @abstractmethod
    def ranks(self) -> Any:
        """What the trainer's driver gets as `DriverContext.ranks`; None: its ranks are processes beside the run."""

    @abstractmethod
    async def start_engine(self, run: Any) -> InferenceEngine:
        """Return the engine of the `RunConfig` `run`, started; the cluster closes it. Raises `AleError`."""

    @abstractmethod
    async def place_episodes(self, run: Any, episodes: Any, pools: Any) -> Any:
        """Return the `ale.rollout.episode.Episodes` of the `RunConfig` `run` as workers of the cluster make them, and
        their sandbox pools; both as they are if it has no workers. Raises `AleError`."""
