"""How the descendants of a process are found, though they fork and end meanwhile."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from ale_sandbox.resident import processes

TREE = """
import ctypes, os, time
for _ in range({adopters}):
    ctypes.CDLL(None).prctl(36, 1)  # it adopts orphans
    if (pid := os.fork()):
        break
else:
    os.write(1, b"%d\\n" % os.getpid())
    os.read(0, 1)
    if os.fork():
        os._exit(0)
time.sleep(60)
"""


@pytest.mark.parametrize("adopters", [1, 2])
def test_one_that_forks_and_ends_while_it_is_looked_at_is_not_the_last(
    adopters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_of = processes.begin_of
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", TREE.format(adopters=adopters)], stdin=pipe, stdout=pipe) as root:
        assert root.stdin is not None
        assert root.stdout is not None
        parent, stdin = int(root.stdout.readline()), root.stdin

        def begin_late(pid: int) -> bytes:
            if pid == parent:
                stdin.write(b"\n")
                stdin.flush()
                while begin_of(pid):
                    time.sleep(0.001)
            return begin_of(pid)

        with monkeypatch.context() as patched:
            patched.setattr(processes, "begin_of", begin_late)
            found = processes.family(root.pid)
        try:
            assert found == processes.family(root.pid)
            assert len(found) == adopters, "the child of what has ended, and those that adopt below the root"
        finally:
            processes.kill_below(root.pid)
            root.kill()
    assert not any(map(begin_of, found))
