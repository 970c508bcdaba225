"""The actor of a trainer's rank, and its process: it joins the other ranks, and answers calls of `RayRanks`.

Answers are bytes that hold what the rank returned or raised (`ale_torch.ranks.rank.Answer`). So errors arrive as they
were raised, which Ray would wrap, and arrays can be written to, which those in Ray's object store cannot.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ale_ray.actor_calls import enter_folder
from ale_torch.ranks import RankPlan, World
from ale_torch.ranks.rank import Rank, answer_with, open_store

PING = "ping"
"""The concurrency group of `RankActor.ping`."""


@dataclass(frozen=True, slots=True)
class RankAddress:
    """Where a rank is: the address of its node and its process there. `port` is that of the store, which rank 0 has."""

    address: str
    pid: int
    port: int = 0


class RankActor:
    """A rank. Calls come one at a time and in their order; all are carried out in the same thread, but `ping`."""

    def __init__(self, number: int, threads: int, folder: str) -> None:
        self._number, self._threads = number, threads
        enter_folder(Path(folder))
        self._address = ""
        self._store: Any = None
        self._rank: Rank | None = None

    def find_place(self) -> bytes:
        """Return the `RankAddress` of this rank; rank 0 opens the store by which the ranks find each other."""
        self._set_threads()
        return answer_with(self._number, self._find_address)

    def prepare(self, plan: RankPlan) -> bytes:
        """Take the plan, before the first call."""
        return answer_with(self._number, lambda: self._prepare(plan))

    def answer(self, request: bytes) -> bytes:
        """Carry out a call; the first one makes the object."""
        assert self._rank is not None, "prepare comes first"
        self._set_threads()
        return self._rank.answer(request)

    def ping(self) -> None:
        """Answer, also while a call is carried out."""

    def leave(self) -> None:
        """Close the object."""
        if self._rank is not None:
            self._rank.close()

    def _set_threads(self) -> None:
        """Set what torch reads when it is imported: Ray sets its own number before each call, and removes it after."""
        os.environ["OMP_NUM_THREADS"] = str(self._threads)

    def _find_address(self) -> RankAddress:
        import ray

        util: Any = ray.util
        self._address = util.get_node_ip_address()
        port = 0
        if self._number == 0:
            self._store, port = open_store(self._address)
        return RankAddress(self._address, os.getpid(), port)

    def _prepare(self, plan: RankPlan) -> None:
        sys.path += [folder for folder in plan.path if folder not in sys.path]  # on another node these may not exist
        self._rank = Rank(World(self._number, plan.size, self._address), plan)
