"""The ranks of a trainer: processes that compute as one, beside the run or where a cluster has room for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Workers(Protocol):
    """All ranks, wherever they are."""

    def call(self, method: str, *args: Any) -> list[Any]:
        """Call a method of all ranks and return their answers."""
        ...

    def kill(self) -> None:
        """End them by force, beside a call of another thread, which then fails."""
        ...

    def close(self) -> None:
        """End them."""
        ...


class RankPlaces(Protocol):
    """Where a cluster has room for the ranks of a trainer (`DriverContext.ranks`)."""

    device: str
    """What each rank computes on: `cpu` or `cuda`."""
    count: int
    """How many ranks there are."""

    def start(
        self, target: str, args: tuple[Any, ...], *, threads: int, launched: Callable[[Workers], None]
    ) -> Workers:
        """Start the ranks, each with an object made by `target(world, *args)`; `target` is `module:Class`.

        `threads` are the CPU threads of each; 0: as many as its place has CPUs. `launched` is called before the objects
        are made, so that another thread can `kill` what does not get ready. Raises what the constructor of the object
        raises."""
        ...
