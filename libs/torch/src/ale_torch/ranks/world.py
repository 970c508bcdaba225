"""What a rank knows: the plan that its owner makes for all ranks at their start, and its place among them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

COLLECTIVE_TIMEOUT = timedelta(hours=6)
"""How long a rank waits for the others; the owner ends the ranks long before if one of them died."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What each rank shall be. `path` is the owner's `sys.path`: what the owner can import, its ranks can."""

    path: list[str]
    target: str
    size: int
    port: int
    """That of the store by which the ranks find each other."""
    threads: int
    backend: str
    host: str = LOOPBACK
    """The address of the store."""
    one_node: bool = True
    """Whether all ranks are on one machine: gloo then takes the loopback interface."""


@dataclass(frozen=True, slots=True)
class World:
    """The ranks 0 to `size - 1`; this process is `rank`. A world of one needs no process group."""

    rank: int = 0
    size: int = 1
    host: str = LOOPBACK
    """The address by which other processes of the run reach this one, on whichever node they are."""

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of ranks. All ranks must call it."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.gather(None)


def backend_of(device: str) -> str:
    """Return torch's name of what connects ranks that compute on a device such as `cpu` or `cuda`."""
    return "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
