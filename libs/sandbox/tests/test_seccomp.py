"""The filter of system calls: each call by a small interpreter of its program."""

from __future__ import annotations

import errno
import struct

import pytest

from ale_sandbox.resident import seccomp

REFUSED = seccomp.REFUSE | errno.EPERM


def verdict(code: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel would do: `struct seccomp_data` is number, architecture, instruction pointer, arguments."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
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
            seccomp.JUMP_EQUAL: held == value,
            seccomp.JUMP_AT_LEAST: held >= value,
            seccomp.JUMP_ANY_BIT: bool(held & value),
        }[operation]
        at += 1 + (if_true if met else if_false)


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
def test_listed_calls_are_refused_and_no_others(machine: str) -> None:
    column, architecture = seccomp.ARCHITECTURES[machine]
    code = seccomp.program(machine)
    assert code is not None
    refused = {numbers[column] for numbers in seccomp.CALLS.values()}
    missing = {numbers[column] for numbers in seccomp.MISSING.values()}
    for number in range(600):
        found = verdict(code, architecture, number, seccomp.FAMILIES["inet"])
        if number in missing:
            assert found == seccomp.REFUSE | errno.ENOSYS, number
        else:
            assert found == (REFUSED if number in refused else seccomp.ALLOW), number
    assert verdict(code, architecture, seccomp.X32 + 1) == REFUSED
    assert verdict(code, 0x40000003, 1) == seccomp.KILL


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
def test_what_depends_on_arguments(machine: str) -> None:
    column, architecture = seccomp.ARCHITECTURES[machine]
    code = seccomp.program(machine)
    assert code is not None

    def of(numbers: tuple[int, int], *arguments: int) -> int:
        return verdict(code, architecture, numbers[column], *arguments)

    assert of(seccomp.CLONE, 0x11) == seccomp.ALLOW
    assert of(seccomp.CLONE, seccomp.CLONE_NEWUSER | 0x11) == REFUSED
    assert of(seccomp.CLONE, seccomp.CLONE_PARENT | 0x11) == REFUSED
    adopting = seccomp.PR_SET_CHILD_SUBREAPER
    assert of(seccomp.PRCTL, adopting, 1) == seccomp.ALLOW
    assert of(seccomp.PRCTL, adopting, 0) == REFUSED
    assert of(seccomp.PRCTL, 15, 0) == seccomp.ALLOW
    for family in range(50):
        wanted = seccomp.ALLOW if family in seccomp.FAMILIES.values() else seccomp.REFUSE | errno.EAFNOSUPPORT
        assert of(seccomp.SOCKET, family, 1) == wanted, family


def test_an_architecture_that_it_does_not_know_has_no_filter() -> None:
    assert seccomp.program("sparc64") is None
