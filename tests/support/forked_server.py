"""A Python for the servers of engines: what it runs is forked from a process which has imported what servers need,
since that is two thirds of a server's start.

1. `forking_python` starts that process with the server's own Python, and gives a program to start servers with.
2. The program sends its arguments, environment, folder and output, passes on the signals that it gets, and ends as the
   server does (`forked_command.PROGRAM`).
3. The process forks a keeper, and this the server. If the program ends first, it was killed: so is the server then.
   This file is run by the server's Python, which has no ALE.
"""

from __future__ import annotations

import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

IMPORTS = {
    "vllm": ("vllm.entrypoints.launchers.api_server", "vllm.v1.engine.async_llm", "vllm.v1.worker.cpu_worker"),
    "sglang": ("torch._dynamo", "transformers", "openai", "scipy.stats", "aiohttp", "fastapi", "uvicorn", "xgrammar"),
}
"""What servers need of it; SGLang itself can be imported by its program alone, which gives it what a CPU lacks."""
AT_IMPORT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TORCH_COMPILE_DISABLE": "1"}
"""What libraries look at when they are imported, as servers on CPUs have it."""
START_S = 300.0
"""For the imports, which nothing has cached at first."""


@contextmanager
def forking_python(python: Path, imports: Sequence[str]) -> Iterator[Path]:
    """A program that stands for this Python, which has imported these modules."""
    from support.forked_command import PROGRAM

    folder = Path(tempfile.mkdtemp(prefix="ale-forked-", dir="/tmp"))  # sockets need a short path
    address = folder / "socket"
    environment = {**os.environ, **AT_IMPORT}
    command = ["setpriv", "--pdeathsig", "KILL", str(python), "-P", __file__, str(address), *imports]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        until = time.monotonic() + START_S
        while not address.exists():
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, f"{', '.join(imports)} are not imported after {START_S:g} s"
            time.sleep(0.05)
        program = folder / "python"
        program.write_text(PROGRAM.format(python=sys.executable, address=str(address)))
        program.chmod(0o755)
        yield program
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder)


def serve(address: str, imports: Sequence[str]) -> None:
    """Fork servers for ever."""
    for name in imports:
        import_module(name)
    shared = runpy.run_path(str(Path(__file__).with_name("forked_worker.py")))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the keepers
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)

        def keep(
            arguments: Sequence[str],
            environment: dict[str, str],
            place: str,
            files: Sequence[int],
            connection: socket.socket,
        ) -> None:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pid = os.fork()
            if pid == 0:
                connection.close()
                shared["take_over"](environment, place, files)
                tempfile.tempdir = None  # the environment decides
                sys.argv = [*arguments]
                sys.path[:0] = [str(Path(arguments[0]).parent)]
                runpy.run_path(arguments[0], run_name="__main__")
                sys.exit()
            for file in files:
                os.close(file)
            watch(pid, connection)

        shared["fork_for_each"](listener, keep)


def watch(pid: int, connection: socket.socket) -> None:
    """Wait for a server's end, or end it with whoever asked for it; says how it ended, and ends."""
    connection.send(str(pid).encode())
    ended = os.pidfd_open(pid)
    select.select([ended, connection.fileno()], [], [])
    for kill in (os.killpg, os.kill):  # also what a server that has ended left running
        with suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        connection.send(str(code).encode())
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
