"""The program of the ranks: `python -m ale_ranks.launch FD FD ...`, a connection to the owner for each rank.
With `--keep FD` it stays, and starts a group of ranks for each request at that socket (`launcher.py`).

1. It imports what the ranks need once, and forks them: each would take seconds to import it again.
2. A rank makes its object and answers calls of its methods. A thread of it reads the calls; when the connection ends,
   because the owner closed it or died, the rank ends at once, whatever it computes: it never outlives its owner.
3. The program waits for its ranks. If one ends otherwise, it answers in its place how.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from ale.errors import AleError, TrainerError
from ale_ranks.plan import COLLECTIVE_TIMEOUT, RankPlan
from ale_ranks.world import World


def main(fds: Sequence[int]) -> None:
    """Fork the ranks and wait for them."""
    connections = [Connection(fd) for fd in fds]
    plans: list[RankPlan] = [pickle.loads(connection.recv_bytes()) for connection in connections]
    plan = plans[0]
    sys.path[:] = plan.path
    failure: Exception | None = None
    try:
        target = _import(plan.target)
    except Exception as error:
        failure = error
    if failure is not None:
        for connection in connections:
            connection.send_bytes(_pickle(("error", failure)))
        return
    ranks: dict[int, Connection] = {}
    for rank, connection in enumerate(connections):
        pid = os.fork()
        if pid == 0:
            for other in connections:
                if other is not connection:
                    other.close()
            _run(connection, World(rank, plan.size), plan, target)
        ranks[pid] = connection
    while ranks:
        pid, status = os.wait()
        connection = ranks.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            with contextlib.suppress(OSError):
                connection.send_bytes(_pickle(("ended", TrainerError(f"its process ended {how}."))))
        connection.close()


def keep(fd: int) -> NoReturn:
    """Fork a process for each group of ranks, with everything imported, until the owner closes the socket."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that have ended
    owner, requests = socket.socket(fileno=fd), Connection(os.dup(fd))
    while True:
        try:
            target, path, environment, folder = requests.recv()
        except EOFError:
            os._exit(0)
        _, (output, *fds), _, _ = socket.recv_fds(owner, 3, 1024)
        sys.path[:] = path
        with contextlib.suppress(Exception):  # the group says what is wrong with it
            _import(target)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            owner.close()
            requests.close()
            for standard in (1, 2):
                os.dup2(output, standard)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            main(fds)
            os._exit(0)
        for each in (output, *fds):
            os.close(each)
        requests.send(pid)


def _import(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def _run(connection: Connection, world: World, plan: RankPlan, target: Any) -> NoReturn:
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_calls, args=(connection, calls), name="ale-rank-calls", daemon=True).start()
    made: Any = None
    while True:
        answer: tuple[str, Any]
        try:
            method, args = pickle.loads(calls.get())
            if made is None:
                _join(world, plan)
                made, value = target(world, *args), None
            else:
                value = getattr(made, method)(*args)
            answer = ("value", value)
        except Exception as error:
            if not isinstance(error, AleError):
                error.add_note(f"On rank {world.rank}:\n{traceback.format_exc()}")
            answer = ("error", error)
        connection.send_bytes(_pickle(answer))


def _join(world: World, plan: RankPlan) -> None:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    torch.set_num_threads(plan.threads)
    if sys.platform == "linux":  # else gloo asks for the address of the host's name, which not every machine knows
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = TCPStore("127.0.0.1", plan.port, world.size, is_master=False, use_libuv=False)
    dist.init_process_group(
        plan.backend, store=store, rank=world.rank, world_size=world.size, timeout=COLLECTIVE_TIMEOUT
    )


def _read_calls(connection: Connection, calls: queue.SimpleQueue[bytes]) -> None:
    while True:
        try:
            calls.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)


def _pickle(answer: tuple[str, Any]) -> bytes:
    try:
        data = pickle.dumps(answer)
        pickle.loads(data)  # some exceptions can be written, but not read again
        return data
    except Exception:
        return pickle.dumps(("error", RuntimeError(f"{type(answer[1]).__name__}: {answer[1]}")))


if __name__ == "__main__":
    if sys.argv[1] == "--keep":
        keep(int(sys.argv[2]))
    main([int(fd) for fd in sys.argv[1:]])
    os._exit(0)  # taking all modules down would take a second
