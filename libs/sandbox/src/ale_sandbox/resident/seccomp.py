"""The filter of system calls in sandboxes: refuses those that no agent's work needs and that reach far into the kernel.

All providers use the same filter. bubblewrap sets it for local sandboxes (`open_program`). In a container the resident
sets it for itself and all that it starts (`install`), besides the engine's own filter, which differs between engines
and releases: Podman's allows user namespaces and keyrings, and older ones of Docker allow io_uring.

1. A refused call returns EPERM; `clone3` and `io_setup` return ENOSYS, so that libraries fall back to other calls. The
   list is what Docker refuses to containers without capabilities, and what counts for the whole machine (`io_setup`).
2. `clone` may not make a user namespace nor a sibling of the caller, and a process may not stop adopting its orphans:
   so a time-out finds all that a command started.
3. Only the socket families of a sandbox's network are allowed. AF_VSOCK has no network namespace: it reaches the host
   of a virtual machine from anywhere in it.
4. Calls of another architecture, whose numbers differ, are all refused.
"""

from __future__ import annotations

import errno
import os

from ale_sandbox.resident.privileges import PR_SET_CHILD_SUBREAPER, libc

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
NUMBER_AT, ARCHITECTURE_AT, FIRST_ARGUMENT_AT, SECOND_ARGUMENT_AT = 0, 4, 16, 24
X32 = 0x40000000
CLONE_NEWUSER, CLONE_PARENT = 0x10000000, 0x8000
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2

# name: (x86_64, aarch64); None where the architecture has no such call
CALLS: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
MISSING: dict[str, tuple[int, int]] = {"clone3": (435, 435), "io_setup": (206, 0)}
"""Calls that look as if the kernel lacked them: `clone3`, because a filter cannot see its flags."""
CLONE, SOCKET, PRCTL = (56, 220), (41, 198), (157, 167)
FAMILIES = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16, "packet": 17}
"""Allowed families of `socket`. Packet sockets also need a capability that agents do not have."""
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def program(machine: str = "") -> bytes | None:
    """Build the filter as `struct sock_filter`s; return None on an unknown architecture."""
    column, architecture = ARCHITECTURES.get(machine or os.uname().machine, (0, 0))
    if not architecture:
        return None
    refused = sorted(number for numbers in CALLS.values() if (number := numbers[column]) is not None)
    code = [
        _step(LOAD, ARCHITECTURE_AT),
        _step(JUMP_EQUAL, architecture, 1, 0),
        _step(RETURN, KILL),
        _step(LOAD, NUMBER_AT),
        _step(JUMP_AT_LEAST, X32, 0, 1),
        _step(RETURN, REFUSE | errno.EPERM),
    ]
    for numbers in MISSING.values():
        code += [_step(JUMP_EQUAL, numbers[column], 0, 1), _step(RETURN, REFUSE | errno.ENOSYS)]
    code += [
        _step(JUMP_EQUAL, CLONE[column], 0, 4),
        _step(LOAD, FIRST_ARGUMENT_AT),
        _step(JUMP_ANY_BIT, CLONE_NEWUSER | CLONE_PARENT, 0, 1),
        _step(RETURN, REFUSE | errno.EPERM),
        _step(RETURN, ALLOW),
        _step(JUMP_EQUAL, PRCTL[column], 0, 6),
        _step(LOAD, FIRST_ARGUMENT_AT),
        _step(JUMP_EQUAL, PR_SET_CHILD_SUBREAPER, 0, 3),
        _step(LOAD, SECOND_ARGUMENT_AT),
        _step(JUMP_EQUAL, 0, 0, 1),
        _step(RETURN, REFUSE | errno.EPERM),
        _step(RETURN, ALLOW),
        _step(JUMP_EQUAL, SOCKET[column], 0, len(FAMILIES) + 3),
        _step(LOAD, FIRST_ARGUMENT_AT),
        *(_step(JUMP_EQUAL, family, len(FAMILIES) - i, 0) for i, family in enumerate(FAMILIES.values())),
        _step(RETURN, REFUSE | errno.EAFNOSUPPORT),
        _step(RETURN, ALLOW),
    ]
    # One comparison per call; each jumps to the last instruction but one.
    for i, number in enumerate(refused):
        code.append(_step(JUMP_EQUAL, number, len(refused) - i, 0))
    return b"".join([*code, _step(RETURN, ALLOW), _step(RETURN, REFUSE | errno.EPERM)])


def open_program() -> int | None:
    """Open a descriptor from which bubblewrap reads the filter once; the caller closes it."""
    code = program()
    if code is None:
        return None
    fd = os.memfd_create("seccomp")
    os.write(fd, code)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def install() -> None:
    """Apply the filter for good to this process, which has set no_new_privs, and to all that it will start."""
    code = program()
    if code is None:
        return
    place = (
        id(code) + bytes.__basicsize__ - 1
    )  # where CPython stores the content of a `bytes`; importing `ctypes` would cost 5 ms
    whole = (len(code) // 8).to_bytes(8, "little") + place.to_bytes(8, "little")  # `struct sock_fprog`
    if libc("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, whole, 0, 0) != 0:
        raise OSError(errno.EPERM, "the sandbox's filter of system calls was refused")


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return code.to_bytes(2, "little") + bytes((if_true, if_false)) + value.to_bytes(4, "little")
