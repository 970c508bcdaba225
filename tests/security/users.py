"""The host's users: what each of them can do at any time, and the keys that the kernel keeps for them."""

from __future__ import annotations

import subprocess
import sys

OPERATIONS = """
import array, ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def can(name, action):
    try:
        fds = action()
    except OSError as error:
        print(name, error.strerror)
    else:
        [os.close(fd) for fd in fds]
def done(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def queue():
    name = b"/ale-can-%d" % os.getpid()
    fd = done(libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None))
    libc.mq_unlink(name)
    return [fd]
def timer():
    made = ctypes.c_void_p()
    done(libc.timer_create(0, None, ctypes.byref(made)))
    libc.timer_delete(made)
    return []
def asynchronous():
    context, setup, destroy = ctypes.c_ulong(0), *((206, 207) if os.uname().machine == "x86_64" else (0, 1))
    done(libc.syscall(setup, 1, ctypes.byref(context)))
    libc.syscall(destroy, context)
    return []
def passing():
    a, b = socket.socketpair()
    with a, b:
        a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))])
        return b.recvmsg(1, 100) and []
can("pass a descriptor", passing)
can("watch files", lambda: [done(libc.inotify_init1(os.O_CLOEXEC))])
can("open a terminal", os.openpty)
can("open a pipe", os.pipe)
can("make a message queue", queue)
can("make a timer", timer)
can("read asynchronously", asynchronous)
can("start a process", lambda: os.waitpid(os.fork() or os._exit(0), 0) and [])
"""
"""Says which of these everyday things cannot be done here, one a line."""


def become(uid: int) -> str:
    """Python that makes a process another user's. Done late: that user might not be able to start this Python."""
    return f"import os; os.setgroups([]); os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid})"


def said_by(uid: int) -> str:
    """What `OPERATIONS` says in a process of a user."""
    program = OPERATIONS.replace("def can(", f"{become(uid)}\ndef can(", 1)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Key:
    """A secret in the keyring that the kernel keeps for a user of the host."""

    def __init__(self, uid: int, name: str, secret: str) -> None:
        self.uid = uid
        self.number = self._call(f"ring(248, 217, b'user', b'ale-{name}', b'{secret}', {len(secret)}, -4)")

    def forget(self) -> None:
        """Take it back."""
        if self.number > 0:
            self._call(f"ring(250, 219, 9, {self.number}, -4)")

    def _call(self, code: str) -> int:
        program = f"""
import ctypes, os
def ring(here, there, *values):
    values = [ctypes.c_long(v) if isinstance(v, int) else v for v in values]
    return ctypes.CDLL(None).syscall(here if os.uname().machine == "x86_64" else there, *values)
{become(self.uid)}
print({code})
"""
        done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=30)
        return int(done.stdout or -1)
