"""A program `ale` for tests that run it by its name, or many times: each run is forked from a process which has
imported everything (`forked_ale.py`), and so starts in no time.

1. The program sends its arguments, environment, folder and output to a server, passes on the signals that it gets, and
   ends as the run does.
2. The server forks, and the child is `ale`. It computes nothing itself, so that it has no threads.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from support.forked_ale import CONTEXT
from support.forked_worker import fork_for_each, take_over

PR_SET_PDEATHSIG = 1
PROGRAM = """#!{python} -SE
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    message = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()])
    socket.send_fds(server, [message.encode()], [0, 1, 2])
    run = int(server.recv(16))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(run, number))
    code = server.recv(16)
sys.exit(int(code) if code else "ale was killed")
"""


@cache
def program() -> Path:
    """The program `ale`, in a folder of its own; its server is there until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="ale-forked-", dir="/tmp"))  # sockets need a short path
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address = str(folder / "socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    server = CONTEXT.Process(target=_serve, args=(listener,))
    server.start()
    atexit.register(server.kill)
    listener.close()
    file = folder / "ale"
    file.write_text(PROGRAM.format(python=sys.executable, address=address))
    file.chmod(0o755)
    return file


def forked_ale(
    *arguments: str | Path, cwd: Path | None = None, timeout_s: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run `ale` to its end."""
    command = [str(program()), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False)


def _serve(listener: socket.socket) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # also where the tests are killed
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the runs
    fork_for_each(listener, _be)


def _be(
    arguments: Sequence[str],
    environment: dict[str, str],
    folder: str,
    files: Sequence[int],
    connection: socket.socket,
) -> None:
    """Be `ale`; its exit code goes to the program that asked for it."""
    take_over(environment, folder, files)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))  # as Python does at its start
    sys.stdin = os.fdopen(0, closefd=False)
    tempfile.tempdir = None  # the environment decides
    connection.send(str(os.getpid()).encode())
    from ale.cli.main import main

    sys.argv = ["ale", *arguments]
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]  # as Python does at its end, before what is registered
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(str(code if isinstance(code, int) else int(code is not None)).encode())
    os._exit(0)
