"""One rank, in its process: it joins the others, makes its object, and answers calls of the object's methods.

`program.py` brings it the calls of an owner on the same machine, the plugin `ray` those of one on another node.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ale.errors import AleError
from ale_torch.ranks.world import COLLECTIVE_TIMEOUT, RankPlan, World

Answer = tuple[str, Any]
"""What a rank answers: `("value", ...)` or `("error", ...)`; `("ended", error)` stands for a process that has ended."""


class Rank:
    """Answers calls, each a method and its arguments, pickled. The first call makes the object of `plan.target`."""

    def __init__(self, world: World, plan: RankPlan) -> None:
        self._world = world
        self._plan = plan
        self._made: Any = None

    def answer(self, request: bytes) -> bytes:
        """Carry out a call and return its answer, pickled."""
        return answer_with(self._world.rank, lambda: self._carry_out(*pickle.loads(request)))

    def close(self) -> None:
        """Close the object, if it can be closed."""
        made, self._made = self._made, None
        if hasattr(made, "close"):
            made.close()

    def _carry_out(self, method: str, args: tuple[Any, ...]) -> Any:
        if self._made is not None:
            return getattr(self._made, method)(*args)
        target = import_target(self._plan.target)
        join(self._world, self._plan)
        self._made = target(self._world, *args)
        return None


def answer_with(rank: int, work: Callable[[], Any]) -> bytes:
    """Return what the work returns or raises as a pickled answer."""
    answer: Answer
    try:
        answer = ("value", work())
    except Exception as error:
        if not isinstance(error, AleError):
            error.add_note(f"On rank {rank}:\n{traceback.format_exc()}")
        answer = ("error", error)
    return pickle_answer(answer)


def pickle_answer(answer: Answer) -> bytes:
    """Return an answer as bytes; one that cannot be pickled becomes an error."""
    try:
        data = pickle.dumps(answer)
        pickle.loads(data)  # some exceptions can be written, but not read again
        return data
    except Exception:
        return pickle.dumps(("error", RuntimeError(f"{type(answer[1]).__name__}: {answer[1]}")))


def import_target(target: str) -> Any:
    """Return the class that `module:Class` names."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def open_store(host: str) -> tuple[Any, int]:
    """Return a new store by which ranks find each other, at a free port of this address, and the port."""
    from torch._C._distributed_c10d import TCPStore  # here, so that importing this package takes no second

    with socket.socket() as listening:
        listening.bind((host, 0))
        listening.listen()
        port = int(listening.getsockname()[1])
        store = TCPStore(
            host, port, is_master=True, wait_for_workers=False, timeout=COLLECTIVE_TIMEOUT,
            master_listen_fd=listening.detach(), use_libuv=False,
        )  # fmt: skip
    return store, port


def join(world: World, plan: RankPlan) -> None:
    """Make this process a rank: all of them wait here for each other."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    torch.set_num_threads(plan.threads)
    if plan.one_node and sys.platform == "linux":
        # Else gloo asks for the address of the host's name, which not every machine knows.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = TCPStore(plan.host, plan.port, world.size, is_master=False, use_libuv=False)
    dist.init_process_group(
        plan.backend, store=store, rank=world.rank, world_size=world.size, timeout=COLLECTIVE_TIMEOUT
    )
