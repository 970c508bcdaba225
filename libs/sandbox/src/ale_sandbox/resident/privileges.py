"""Changes users in a sandbox with several: root with four capabilities, the agent with none, the tests' user with one.

Runs in the resident, inside the sandbox. The kernel does most of the work: a root process that becomes another user
loses all its capabilities.
"""

from __future__ import annotations

import _ctypes  # `ctypes` itself would cost a fifth of each start
import os
import sys

TYPE_CHECKING = False  # importing it, or `collections.abc`, would cost 3 ms of each start
if TYPE_CHECKING:
    from collections.abc import Callable

Caps = frozenset[int]
AGENT_UID, TESTS_UID = 1000, 1001
PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_CAP_AMBIENT = 4, 8, 24, 36, 47
PR_CAP_AMBIENT_RAISE, PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETGID, CAP_SETUID = 1, 5, 6, 7
OWN_CAPS = frozenset({CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETGID, CAP_SETUID})
NO_CAPS: Caps = frozenset()
READ_ALL = frozenset({CAP_DAC_OVERRIDE})
"""With this capability the tests' user may read and write the agent's files whatever their modes."""

LIBC = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: this program itself
CAPABILITIES = (0x20080522).to_bytes(4, sys.byteorder) + bytes(4)
"""The header of the system calls `capget` and `capset`: version 3, this process."""


def libc(name: str, *arguments: int | bytes | None) -> int:
    """Call a function of the C library; bytes are passed as a pointer to their content."""
    return int(_ctypes.call_function(_ctypes.dlsym(LIBC, name), arguments))


def prctl(option: int, *values: int) -> None:
    """Call `prctl`; ignore a kernel that is too old for the option."""
    libc("prctl", option, *(*values, 0, 0, 0, 0)[:4])


def set_capabilities(effective: Caps, permitted: Caps, inheritable: Caps = NO_CAPS) -> None:
    """Set this process's capabilities."""
    masks = [sum(1 << cap for cap in caps) for caps in (effective, permitted, inheritable)]
    data = b"".join(mask.to_bytes(4, sys.byteorder) for mask in (*masks, 0, 0, 0))
    if libc("capset", CAPABILITIES, data) != 0:
        raise OSError("capset was refused")


def drop(caps: Caps) -> None:
    """Drop capabilities for good, from this process and its children."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    held = bytes(24)  # a new object that nothing else refers to; the call fills it
    if libc("capget", CAPABILITIES, held) != 0:
        raise OSError("capget was refused")
    for cap in caps:
        prctl(PR_CAPBSET_DROP, cap)  # if allowed; in any case no_new_privs keeps them from coming back
    lost = sum(1 << cap for cap in caps)
    kept = [int.from_bytes(held[at : at + 4], sys.byteorder) & ~lost for at in (0, 4, 8)]
    data = b"".join(mask.to_bytes(4, sys.byteorder) for mask in kept) + held[12:]
    if libc("capset", CAPABILITIES, data) != 0:
        raise OSError("capset was refused")


class Rights:
    """Changes between the users of a sandbox; does nothing if there is only one."""

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
        """In a child: become `user` for good, and adopt orphans among its descendants."""
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
        """Access files with a user's rights, so that a link planted by the agent leads nowhere new."""
        if self.several:
            uid = TESTS_UID if user == b"tests" else AGENT_UID
            os.setegid(uid)
            os.seteuid(uid)
            if uid == TESTS_UID:
                set_capabilities(READ_ALL, OWN_CAPS)

    def take_as(self, owner: int) -> None:
        """Create files as `owner` in any folder, to restore a snapshot."""
        if self.several:
            self.give_back()
            if owner:
                os.setegid(owner)
                os.seteuid(owner)
                set_capabilities(READ_ALL, OWN_CAPS)

    def give_back(self) -> None:
        """Return to the resident's own rights."""
        if self.several:
            os.seteuid(0)
            os.setegid(0)


def as_user(uid: int, gid: int, change: Callable[..., object], *arguments: object, **more: object) -> None:
    """Do what only an owner may do, as that owner, if the resident is another user."""
    several = os.geteuid() == 0
    try:
        if several:
            os.setegid(gid)
            os.seteuid(uid)
        change(*arguments, **more)
    finally:
        if several:
            os.seteuid(0)
            os.setegid(0)
