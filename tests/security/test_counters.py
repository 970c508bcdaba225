"""Attacks on what the kernel counts for a user or for the whole machine: watches, queued signals, message queues,
terminals.

What one sandbox takes, the host's own users must still have. `docs/security.md` says what sandboxes share among
themselves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from .attack import Attack, judge
from .conftest import everywhere
from .world import World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]
TRIES = 50
LOCAL = frozenset({"local"})
USED_UP = frozenset({"EMFILE", "EAGAIN", "ENOSPC", "ETOOMANYREFS"})


@dataclass(frozen=True)
class Count(Attack):
    """An attack on what the kernel counts for a user, or for the machine."""

    siblings: bool = False
    """Whether it is left for other sandboxes too. Where not, `docs/security.md` says so."""


COUNTERS = [
    Count(
        "takes all the watches of files that a user may have",
        """
def watches():
    for _ in range(2000):
        call("inotify_init1", 0)
control("one", call("inotify_init1", 0) >= 0)
in_background(watches)
attempt("one more", call, "inotify_init1", 0)
""",
        USED_UP,
        only=LOCAL,
    ),
    Count(
        "queues all the signals that a user may have",
        """
import resource
resource.setrlimit(resource.RLIMIT_SIGPENDING, (resource.getrlimit(resource.RLIMIT_SIGPENDING)[1],) * 2)
def queue():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 65))
    info = ctypes.create_string_buffer(struct.pack("=iii", 34, 0, -1) + bytes(120))
    for _ in range(400_000):
        call("rt_sigqueueinfo", os.getpid(), 34, info)
signal.pthread_sigmask(signal.SIG_BLOCK, [35])
info = ctypes.create_string_buffer(struct.pack("=iii", 35, 0, -1) + bytes(120))
control("one", call("rt_sigqueueinfo", os.getpid(), 35, info) == 0)
in_background(queue)
def more():
    # The kernel counts what it sends itself, such as SIGCHLD, and so may have one to give back: not as many as these.
    for _ in range(64):
        call("rt_sigqueueinfo", os.getpid(), 35, info)
attempt("some more", more)
""",
        USED_UP,
    ),
    Count(
        "fills all the message queues that a user may have",
        """
def queues():
    attributes = (ctypes.c_long * 8)(0, 10, 8192)
    for number in range(200):
        if libc.mq_open(b"/q%d" % number, os.O_CREAT | os.O_RDWR, 0o600, attributes) < 0:
            raise OSError(ctypes.get_errno(), "")
def one(name):
    fd = libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "")
    return fd
control("one", os.close(one(b"/one")) is None and libc.mq_unlink(b"/one") == 0)
in_background(queues)
attempt("one more", one, b"/more")
""",
        USED_UP,
    ),
    Count(
        "takes all the asynchronous reads of the machine",
        """
def contexts():
    size = 1 << 16
    while size:
        try:
            call("io_setup", size, ctypes.byref(ctypes.c_ulong(0)))
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            size //= 2
with open("/proc/sys/fs/aio-max-nr") as file:
    control("there is a limit", int(file.read()) > 0)
in_background(contexts)
attempt("one more", call, "io_setup", 1, ctypes.byref(ctypes.c_ulong(0)))
""",
        USED_UP | {"ENOSYS"},
        siblings=True,
    ),
    Count(
        "takes all the terminals of the machine",
        """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
control("one", os.isatty(os.openpty()[1]))
for _ in range(4):
    in_background(lambda: [os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY) for _ in range(2000)])
attempt("one more", os.openpty)
""",
        USED_UP,
        only=LOCAL,
    ),
    Count(
        "keeps all the descriptors under way that a user may have",
        """
import array, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
kept = []
def sockets():
    while True:
        a, b = socket.socketpair()
        kept.extend((a, b))
        a.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1] * 250))])
def pass_on():
    a, b = socket.socketpair()
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1]))])
pass_on()
control("one")
in_background(sockets)
attempt("one more", pass_on)
""",
        USED_UP,
        only=LOCAL,
    ),
]


@everywhere(COUNTERS)
async def test_what_the_kernel_counts_is_left_for_the_host(world: World, attack: Count) -> None:
    async with world.arena() as scene:
        judge(attack, await scene.run(attack.program))
        assert len(scene.processes()) >= 1, "It holds what it took."
        assert world.host.operations() == world.host.cannot, "What the host's users can do."
        if attack.siblings:
            # The kernel gives back what an earlier sandbox held, such as message queues, a while after its end.
            for _ in range(TRIES):
                if (can := await world.sibling_operations()) == world.sibling_cannot:
                    break
                await asyncio.sleep(0.2)
            assert can == world.sibling_cannot, "What another sandbox can do."
