"""What the ranks of the tests hold; in a module of its own, because each rank imports it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ale.errors import ConfigError
from ale_torch.ranks import World


class Member:
    """Does as it is asked; `folder` is where it writes that it was closed."""

    def __init__(self, world: World, folder: Path | None = None) -> None:
        if folder is not None and not folder.is_dir():
            raise ConfigError(f"There is no folder {folder}.")
        self.world = world
        self.folder = folder

    def describe(self, number: int) -> tuple[int, int, str, int]:
        """Return the rank, the sum over all ranks, the node and the process."""
        import ray

        total = sum(self.world.gather(number + self.world.rank))
        return self.world.rank, total, ray.get_runtime_context().get_node_id(), os.getpid()

    def double(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Change an array where it is."""
        values *= 2
        return values

    def apply(self, function: Any) -> Any:
        return function(self.world)

    def fail(self, *ranks: int) -> None:
        if self.world.rank in ranks:
            raise ZeroDivisionError("nothing to divide by")
        self.world.barrier()

    def load(self, apart_s: float) -> None:
        time.sleep(self.world.rank * apart_s)
        raise ConfigError("The folder is damaged.")

    def kill(self, rank: int) -> None:
        if self.world.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        self.world.barrier()

    def close(self) -> None:
        if self.folder is not None:
            (self.folder / f"{self.world.rank} was closed").touch()
