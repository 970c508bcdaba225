"""The program of the ranks: `python -m ale_torch.ranks.program FD FD ...`, a connection to the owner for each rank.
With `--keep FD` it stays, and starts a group of ranks for each request at that socket (`launcher.py`).

1. It imports what the ranks need once, and forks them: each would take seconds to import it again.
2. A rank makes its object and answers calls of its methods (`rank.py`). A thread of it reads the calls; when the
   connection ends, because the owner closed it or died, the rank ends at once, whatever it computes: it never outlives
   its owner.
3. The program waits for its ranks. If one ends in another way, the program reports that to the owner in its place.
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
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NoReturn

from ale.errors import TrainerError
from ale_torch.ranks.rank import Rank, import_target, pickle_answer
from ale_torch.ranks.world import RankPlan, World


def main(fds: Sequence[int]) -> None:
    """Fork the ranks and wait for them."""
    connections = [Connection(fd) for fd in fds]
    plans: list[RankPlan] = [pickle.loads(connection.recv_bytes()) for connection in connections]
    plan = plans[0]
    sys.path[:] = plan.path
    failure: Exception | None = None
    try:
        import_target(plan.target)
    except Exception as error:
        failure = error
    if failure is not None:
        for connection in connections:
            connection.send_bytes(pickle_answer(("error", failure)))
        return
    ranks: dict[int, Connection] = {}
    for rank, connection in enumerate(connections):
        pid = os.fork()
        if pid == 0:
            for other in connections:
                if other is not connection:
                    other.close()
            _run(connection, Rank(World(rank, plan.size), plan))
        ranks[pid] = connection
    while ranks:
        pid, status = os.wait()
        connection = ranks.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            with contextlib.suppress(OSError):
                connection.send_bytes(pickle_answer(("ended", TrainerError(f"its process ended {how}."))))
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
            import_target(target)
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


def _run(connection: Connection, rank: Rank) -> NoReturn:
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_calls, args=(connection, calls), name="ale-rank-calls", daemon=True).start()
    while True:
        connection.send_bytes(rank.answer(calls.get()))


def _read_calls(connection: Connection, calls: queue.SimpleQueue[bytes]) -> None:
    while True:
        try:
            calls.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "--keep":
        keep(int(sys.argv[2]))
    main([int(fd) for fd in sys.argv[1:]])
    os._exit(0)  # taking all modules down would take a second
