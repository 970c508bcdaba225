"""Runs a server as a child and leaves nothing of it behind. It runs as a program of its own and needs the standard
library alone: `python guard.py GRACE_S REMOVE -- COMMAND...`, where REMOVE is a JSON list of paths; the last part of
a path may be a pattern.

1. It is a child of the process that was started, which waits for it and passes signals on: a worker of Ray that is
   killed first kills its own children, and would otherwise kill the guard before what the guard is there to end.
2. It becomes the reaper of all processes below it, also of those that leave their session or lose their parent.
3. It starts the command, which dies with it, in a session of its own, and writes its pid to standard output.
4. When standard input ends (its owner closed it, or was killed), when it gets SIGTERM, or when the command ends by
   itself, it ends what is left below it: SIGTERM for the command, and after GRACE_S seconds SIGKILL for everything.
5. It removes the files and folders of REMOVE, writes how the command ended to standard output, and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.05


def main() -> None:
    """Start the command and stay until nothing of it is left."""
    if child := os.fork():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(child, number))
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    grace_s, patterns = float(sys.argv[1]), json.loads(sys.argv[2])
    command = sys.argv[4:]
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    waking, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    guard = os.getpid()

    def die_with_the_guard() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)

    try:
        # Standard output and error of the command are this process's standard error: the log.
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True, preexec_fn=die_with_the_guard
        )
    except OSError as error:
        print(f"error {error}", flush=True)
        raise SystemExit(1) from None
    print(f"pid {server.pid}", flush=True)
    wait(server, waking)
    if server.poll() is None:
        server.terminate()
        until = time.monotonic() + grace_s
        while server.poll() is None and time.monotonic() < until:
            time.sleep(POLL_S)
    kill_descendants(server)
    for pattern in patterns:
        remove(pattern)
    with contextlib.suppress(BrokenPipeError):
        print(f"ended {server.wait()}", flush=True)


def remove(pattern: str) -> None:
    """Remove the files and folders whose names match the last part of a path."""
    parent, name = os.path.split(pattern)
    for path in glob.glob(os.path.join(glob.escape(parent), name)):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(path)


def wait(server: subprocess.Popen[bytes], waking: int) -> None:
    """Return when the command ends, the owner is gone, or this process shall end."""
    while server.poll() is None:
        ready, _, _ = select.select([0, waking], [], [])
        if 0 in ready and not os.read(0, 4096):
            return
        if waking in ready and any(number != signal.SIGCHLD for number in os.read(waking, 4096)):
            return


def kill_descendants(server: subprocess.Popen[bytes]) -> None:
    """Kill every process below this one, until none is left; orphans become its children."""
    while children := children_of(os.getpid()):
        for pid in children:
            for process in (*descendants_of(pid), pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        for pid in children:
            if pid == server.pid:
                server.wait()
                continue
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def descendants_of(pid: int) -> list[int]:
    """Return the processes below one, as they are at this moment."""
    below = children_of(pid)
    return [*below, *(further for child in below for further in descendants_of(child))]


def children_of(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


if __name__ == "__main__":
    main()
