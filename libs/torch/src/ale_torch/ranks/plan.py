"""What the owner tells its ranks at their start."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

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


def backend_of(device: str) -> str:
    """Return torch's name of what connects ranks that compute on a device such as `cpu` or `cuda`."""
    return "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
