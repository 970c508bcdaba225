"""What a rank knows of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ale_torch.ranks.plan import LOOPBACK


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
