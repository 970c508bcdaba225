"""Workers of Ray that are forked from a process which has imported what actors need: importing it takes each of them
seconds, and a run starts six.

1. Ray starts a worker by `python SETUP default_worker.py ...`, where SETUP is a script that a node is given. This file
   is one: it sends its arguments, environment, folder and output to the server, and ends. So it imports nothing else
   of this package.
2. The server, `python -m support.forked_worker`, forks, and the child becomes Ray's worker. Ray knows it by the
   process id that it registers with. The server computes nothing, so that it has no threads.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

SOCKET = "ALE_FORKED_WORKERS"
"""The variable with the server's address."""
IMPORTS = (
    "ale_ray.engine_actor",
    "ale_ray.rollout_worker",
    "ale_ray.rank_actor",
    "ale_torch.ranks.rank",
    "torch.distributed",
)
FOR_SETUP = ("--serialized-runtime-env-context", "--language")
"""Ray's options for its own SETUP."""
LIMIT = 1 << 18


def start_server(address: Path) -> subprocess.Popen[bytes]:
    """Start the server; nodes that this process starts from now on find it, and it ends with this process."""
    os.environ[SOCKET] = str(address)
    python = [sys.executable, "-P", "-m", "support.forked_worker"]
    places = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]  # where `support` is
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    server = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *python], env=environment)
    while not address.exists():
        assert server.poll() is None, "the server of Ray's workers has ended"
        time.sleep(0.05)
    return server


def send() -> None:
    """Have the server make this process's worker."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(os.environ[SOCKET])
        message = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()])
        socket.send_fds(server, [message.encode()], [0, 1, 2])


def serve() -> None:
    """Make workers for ever."""
    from support.forked_ale import IMPORTS as RUN

    for name in (*RUN, *IMPORTS):
        with suppress(ImportError):  # a package's tests have only what they need
            import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps them
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.environ[SOCKET])
        listener.listen(64)
        fork_for_each(listener, become)


def fork_for_each(listener: socket.socket, become: Callable[..., None]) -> None:
    """For each message that comes, for ever, fork a process that becomes what the message says: `become` gets its
    arguments, environment, folder and open files, and the connection."""
    while True:
        with listener.accept()[0] as connection:
            message, files, _, _ = socket.recv_fds(connection, LIMIT, 3)
            if os.fork() == 0:
                listener.close()
                become(*json.loads(message), files, connection)
        for file in files:
            os.close(file)


def take_over(environment: dict[str, str], folder: str, files: Sequence[int]) -> None:
    """Have the environment, folder and standard files of another process, and a session of this one's own."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)


def become(
    arguments: Sequence[str],
    environment: dict[str, str],
    folder: str,
    files: Sequence[int],
    connection: socket.socket,
) -> None:
    """Be Ray's worker, and end."""
    connection.close()  # whoever asked does not wait
    take_over(environment, folder, files)
    sys.argv = [word for word in arguments if not word.startswith(FOR_SETUP)]
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    send() if sys.argv[1:] else serve()
