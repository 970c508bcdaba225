"""The seccomp filter of local sandboxes: system calls that no agent's work needs, and that reach far into the kernel.

What is refused gives EPERM; `clone3` gives ENOSYS, so that libraries fall back to `clone`, whose flags a filter can see:
a new user namespace is refused there. The list is what Docker's own profile refuses to containers without capabilities.
"""

from __future__ import annotations

import errno
import os
import platform
import struct

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
NUMBER_AT, ARCHITECTURE_AT, FIRST_ARGUMENT_AT = 0, 4, 16
X32 = 0x40000000
CLONE_NEWUSER = 0x10000000

# name: (x86_64, aarch64); None where the architecture has no such call
CALLS: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "clock_adjtime": (305, 266),
    "clock_settime": (227, 112), "delete_module": (176, 106), "fanotify_init": (300, 262), "finit_module": (313, 273),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433), "init_module": (175, 105),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioperm": (173, None),
    "iopl": (172, None), "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219),
    "lookup_dcookie": (212, 18), "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429),
    "move_pages": (279, 239), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "perf_event_open": (298, 241), "pivot_root": (155, 41), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "reboot": (169, 142), "request_key": (249, 218), "setdomainname": (171, 162), "sethostname": (170, 161),
    "setns": (308, 268), "settimeofday": (164, 170), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116),
    "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282), "vhangup": (153, 58),
}  # fmt: skip
CLONE, CLONE3 = (56, 220), 435
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def program(machine: str = "") -> bytes | None:
    """The filter as `struct sock_filter`s; None on an architecture that it does not know."""
    column, architecture = ARCHITECTURES.get(machine or platform.machine(), (0, 0))
    if not architecture:
        return None
    refused = sorted(number for numbers in CALLS.values() if (number := numbers[column]) is not None)
    code = [
        _step(LOAD, ARCHITECTURE_AT),
        _step(JUMP_EQUAL, architecture, 1, 0),
        _step(RETURN, KILL),  # a call of another architecture has other numbers
        _step(LOAD, NUMBER_AT),
        _step(JUMP_AT_LEAST, X32, 0, 1),
        _step(RETURN, REFUSE | errno.EPERM),
        _step(JUMP_EQUAL, CLONE3, 0, 1),
        _step(RETURN, REFUSE | errno.ENOSYS),
        _step(JUMP_EQUAL, CLONE[column], 0, 4),
        _step(LOAD, FIRST_ARGUMENT_AT),
        _step(JUMP_ANY_BIT, CLONE_NEWUSER, 0, 1),
        _step(RETURN, REFUSE | errno.EPERM),
        _step(RETURN, ALLOW),
    ]
    # One comparison a call, all jumping to the last instruction but one.
    for i, number in enumerate(refused):
        code.append(_step(JUMP_EQUAL, number, len(refused) - i, 0))
    return b"".join([*code, _step(RETURN, ALLOW), _step(RETURN, REFUSE | errno.EPERM)])


def open_program() -> int | None:
    """A descriptor from which bubblewrap reads the filter, once; whoever opens it closes it."""
    code = program()
    if code is None:
        return None
    fd = os.memfd_create("seccomp")
    os.write(fd, code)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
