"""Who does what in a sandbox with several users: root with four capabilities, the agent with none, the tests with one.

Used by the resident, inside the sandbox. The kernel does most of it: a root that becomes another user loses all its
capabilities.
"""

from __future__ import annotations

import ctypes
import os

Caps = frozenset[int]
AGENT_UID, TESTS_UID = 1000, 1001
PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_CHILD_SUBREAPER, PR_CAP_AMBIENT = 4, 8, 36, 47
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETGID, CAP_SETUID = 1, 5, 6, 7
OWN_CAPS = frozenset({CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETGID, CAP_SETUID})
NO_CAPS: Caps = frozenset()
READ_ALL = frozenset({CAP_DAC_OVERRIDE})
"""The tests' user may read and write what the agent left, whatever modes it gave to it."""

libc = ctypes.CDLL(None)


def prctl(option: int, *values: int) -> None:
    """The system call; a kernel too old for an option is no reason to fail."""
    libc.prctl(option, *[ctypes.c_ulong(v) for v in (*values, 0, 0, 0, 0)[:4]])


def set_capabilities(effective: Caps, permitted: Caps, inheritable: Caps = NO_CAPS) -> None:
    """Set this process's capabilities."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    masks = [sum(1 << cap for cap in caps) for caps in (effective, permitted, inheritable)]
    data = (ctypes.c_uint32 * 6)(*masks, 0, 0, 0)
    if libc.capset(header, data) != 0:
        raise OSError("capset was refused")


class Rights:
    """Changes between the users of a sandbox; with one user there is nothing to change."""

    def __init__(self, several: bool) -> None:
        self.several = several
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        if several:
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            set_capabilities(OWN_CAPS, OWN_CAPS)
        else:
            # The agent is the same user: it must not be able to attach to this process and forge its answers.
            prctl(PR_SET_DUMPABLE, 0)

    def become(self, user: bytes) -> None:
        """In a child: be `user` for good, and adopt the orphans among what it will start."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        if not self.several:
            return
        uid = TESTS_UID if user == b"tests" else AGENT_UID
        prctl(PR_SET_KEEPCAPS, 1 if uid == TESTS_UID else 0)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        if uid == TESTS_UID:
            set_capabilities(READ_ALL, READ_ALL, READ_ALL)
            prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE)

    def take(self, user: bytes) -> None:
        """Touch files with a user's rights: a link planted by the agent then leads nowhere it could not go itself."""
        if self.several:
            uid = TESTS_UID if user == b"tests" else AGENT_UID
            os.setegid(uid)
            os.seteuid(uid)
            if uid == TESTS_UID:
                set_capabilities(READ_ALL, OWN_CAPS)

    def give_back(self) -> None:
        """Be the resident again."""
        if self.several:
            os.seteuid(0)
            os.setegid(0)
