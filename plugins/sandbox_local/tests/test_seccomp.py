"""The seccomp filter: each call by a small interpreter of its program, and in a real sandbox."""

from __future__ import annotations

import errno
import platform
import struct

import pytest

from ale_local import LocalSandbox, seccomp

REFUSED = seccomp.REFUSE | errno.EPERM


def verdict(code: bytes, architecture: int, number: int, argument: int = 0) -> int:
    """What the kernel would do: `struct seccomp_data` is number, architecture, instruction pointer, arguments."""
    data = struct.pack("=IIQQ", number, architecture, 0, argument)
    steps = list(struct.iter_unpack("=HBBI", code))
    held = at = 0
    while True:
        operation, if_true, if_false, value = steps[at]
        if operation == seccomp.RETURN:
            return int(value)
        if operation == seccomp.LOAD:
            (held,) = struct.unpack_from("=I", data, value)
            at += 1
            continue
        met = {
            seccomp.JUMP_EQUAL: held == value, seccomp.JUMP_AT_LEAST: held >= value,
            seccomp.JUMP_ANY_BIT: bool(held & value),
        }[operation]  # fmt: skip
        at += 1 + (if_true if met else if_false)


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
def test_listed_calls_are_refused_and_no_others(machine: str) -> None:
    column, architecture = seccomp.ARCHITECTURES[machine]
    code = seccomp.program(machine)
    assert code is not None
    refused = {numbers[column] for numbers in seccomp.CALLS.values()}
    for number in range(600):
        found = verdict(code, architecture, number)
        if number == seccomp.CLONE3:
            assert found == seccomp.REFUSE | errno.ENOSYS
        else:
            assert (found == REFUSED) == (number in refused), number
            assert found in (REFUSED, seccomp.ALLOW)
    clone = seccomp.CLONE[column]
    assert verdict(code, architecture, clone, 0x11) == seccomp.ALLOW
    assert verdict(code, architecture, clone, seccomp.CLONE_NEWUSER | 0x11) == REFUSED
    assert verdict(code, architecture, seccomp.X32 + 1) == REFUSED
    assert verdict(code, 0x40000003, 1) == seccomp.KILL


def test_an_architecture_that_it_does_not_know_has_no_filter() -> None:
    assert seccomp.program("sparc64") is None


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
