"""What the ranks of the tests hold; in a module of its own, because each rank imports it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch.distributed  # noqa: F401 - what real ranks hold imports it too: once, before they are forked

from ale.errors import ConfigError
from ale_torch.ranks import World


class Member:
    """Does as it is asked."""

    def __init__(self, world: World, word: str = "") -> None:
        if word == "broken":
            raise ConfigError("There is no such thing.")
        if word == "stopped" and world.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        self.world = world
        self.word = word

    def describe(self, number: int) -> tuple[int, int, str, list[Any]]:
        return self.world.rank, os.getpid(), self.word, self.world.gather(number + self.world.rank)

    def fail(self, *ranks: int) -> None:
        if self.world.rank in ranks:
            print("the reason, as its library printed it", flush=True)
            raise ZeroDivisionError("nothing to divide by")
        self.world.barrier()

    def load(self, apart_s: float) -> None:
        time.sleep(self.world.rank * apart_s)
        raise ConfigError("The folder is damaged.")

    def apply(self, function: Any) -> Any:
        return function(self.world.rank)

    def kill(self, rank: int) -> None:
        if self.world.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        self.world.barrier()

    def close(self) -> None:
        self.word = "closed"
