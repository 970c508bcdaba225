"""The filter of system calls in a real sandbox; its program is tested beside it, in `libs/resident`."""

from __future__ import annotations

import errno
import platform

import pytest

from ale_local import LocalSandbox
from ale_sandbox.resident import seccomp


@pytest.mark.bwrap
async def test_it_is_in_force_and_programs_still_work(box: LocalSandbox) -> None:
    status = (await box.exec("grep Seccomp: /proc/self/status")).stdout
    assert status.split() == [b"Seccomp:", b"2"]
    for command in ("unshare -U true", "unshare -n true", "mount -t tmpfs x /tmp"):
        assert (await box.exec(command)).exit_code != 0, command
    script = """
import ctypes, os, subprocess, threading
libc = ctypes.CDLL(None, use_errno=True)
done = []
threads = [threading.Thread(target=done.append, args=(i,)) for i in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(done), subprocess.run(["echo", "child"], capture_output=True).stdout)
libc.syscall(ADD_KEY, b"user", b"k", b"v", 1, -3)
print(ctypes.get_errno())
""".replace("ADD_KEY", str(seccomp.CALLS["add_key"][seccomp.ARCHITECTURES[platform.machine()][0]]))
    said = (await box.exec("python3 -", stdin=script.encode())).stdout.decode().splitlines()
    assert said == ["4 b'child\\n'", str(errno.EPERM)]
