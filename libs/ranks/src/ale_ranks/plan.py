"""What the owner tells its ranks at their start."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

COLLECTIVE_TIMEOUT = timedelta(hours=6)
"""How long a rank waits for the others; the owner ends the ranks long before if one of them died."""


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What each rank shall be. `path` is the owner's `sys.path`: what the owner can import, its ranks can."""

    path: list[str]
    target: str
    size: int
    port: int
    threads: int
    backend: str
