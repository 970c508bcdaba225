"""Resets after what an agent can think of. What everybody's reset must do is in the conformance kit."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ale.errors import SandboxError, UncleanError
from ale.specs.sandbox import TESTS, Resources, SandboxSpec
from ale.specs.sandbox_protocols import Resets
from ale_local import LocalSandboxProvider

from .conftest import provider_for

pytestmark = pytest.mark.bwrap
LOOK = (
    "find . ~ /tmp /dev/shm /dev/mqueue -xdev -printf '%p %M %u %TY-%Tm-%Td %n\\n'; ipcs | grep -c 0x; "
    "set -- /proc/[0-9]*; echo $#; lsattr -d . || true"
)
MENDED = {
    "a tree of twenty thousand levels": """python3 -c '
import os
os.chdir("/tmp")
for _ in range(20_000): os.mkdir("d"); os.chdir("d")'""",
    "a folder of twenty thousand folders": "cd /tmp; python3 -c 'import os\nfor i in range(20_000): os.mkdir(str(i))'",
    "names of any bytes": """python3 -c '
import os
for i in set(range(1, 256)) - {47}:
    os.mkdir(b"x" + bytes([i])); open(b"x" + bytes([i]) + b"/" + bytes([i]) * 255, "w").close()'""",
    "links that lead elsewhere": "ln -s /tmp here; mkdir d; ln -s / d/root; ln -s .. d/up; ln -s ~ /tmp/home; "
    "touch ~/f; ln ~/f ~/g",
    "folders that are closed to everybody": "mkdir -p a/b /tmp/a/b; touch a/b/c; chmod 0 a/b a; chmod 111 /tmp/a/b; "
    "chmod 0 . ~ /tmp",
    "set bits and access lists": "chmod 7777 . /tmp; mkdir s; chmod 3777 s; touch s/f; chmod 6755 s/f",
    "attributes and flags": """python3 -c '
import os
for path in (".", "/tmp", os.path.expanduser("~")):
    os.setxattr(path, "user.note", b"for the next one")'; chattr +dA . || true""",
    "times": "touch -d 1999-12-31 . ~ /tmp /dev/shm; touch -a -d 2038-01-01 .",
    "pipes, sockets and terminals": """mkfifo p; python3 -c '
import os, socket
socket.socket(socket.AF_UNIX).bind("/tmp/sock"); os.openpty()
if os.fork() == 0: os.setsid(); os.execlp("sleep", "sleep", "1000")'""",
    "a file without a name that a process holds": "exec 3>/tmp/f; rm /tmp/f; head -c 1000000 /dev/zero >&3; "
    "setsid sleep 1000 &",
    "a message queue": "python3 -c 'import ctypes; ctypes.CDLL(None).mq_open(b\"/q\", 0o102, 0o600, None)'; "
    "test -e /dev/mqueue/q",
    "processes that multiply": ":(){ :|:& }; : 2>/dev/null; sleep 0.3; true",
    "processes that write on and on": "for i in 1 2 3; do (setsid sh -c 'while :; do echo x > /tmp/$RANDOM; "
    "done' &) ; done; sleep 0.1",
    "a full disk": "head -c 100000000 /dev/zero > big; head -c 100000000 /dev/zero > /tmp/big; true",
    "memory that is all taken": "head -c 400000000 /dev/zero | tail > /dev/null; true",
    "an answer to nobody": "python3 -c 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
    's.sendto(b"x", ("127.0.0.1", 9))\'',
}


@pytest.fixture(scope="module")
def small() -> SandboxSpec:
    """A sandbox of a limited size."""
    return SandboxSpec(resources=Resources(memory_mib=256, pids=64, disk_mib=16))


@pytest.mark.parametrize("what", MENDED, ids=lambda what: what.replace(" ", "-"))
async def test_it_is_mended(wrapped: LocalSandboxProvider, small: SandboxSpec, what: str) -> None:
    async with await wrapped.start_sandbox(small) as box:
        await box.reset(small)  # what a look itself changes, such as the time of the last access, is the same then
        fresh = (await box.exec(LOOK, user=TESTS)).output
        await box.reset(small)
        done = await box.exec(MENDED[what], timeout_s=30)
        assert done.exit_code == 0 or "take" in what or "multiply" in what, done.output
        await box.reset(small)
        assert (await box.exec(LOOK, user=TESTS)).output == fresh


async def test_what_two_users_left_in_each_others_folders_is_removed(wrapped: LocalSandboxProvider) -> None:
    async with await wrapped.start_sandbox(SandboxSpec()) as box:
        if "users" not in wrapped.capabilities:
            pytest.skip("there is one user only")
        fresh = (await box.exec("find . /tmp -xdev", user=TESTS)).stdout
        await box.exec("mkdir -m 1777 ours /tmp/ours; chmod 1777 . /tmp; mkdir -m 777 ours/open")
        await box.exec("mkdir -p ours/t/x /tmp/ours/t ours/open/t; touch ours/t/x/y ours/f /tmp/f", user=TESTS)
        await box.exec("touch ours/open/t2 ours/g; chmod 1700 ours/open", user="agent")
        await box.reset(SandboxSpec())
        assert (await box.exec("find . /tmp -xdev", user=TESTS)).stdout == fresh


async def test_a_closed_connection_cannot_be_taken_away(wrapped: LocalSandboxProvider) -> None:
    talk = """python3 -c '
import socket
s = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(s.getsockname())
a, _ = s.accept(); c.close(); a.close()'"""
    async with await wrapped.start_sandbox(SandboxSpec()) as box:
        await box.exec(talk)
        with pytest.raises(
            UncleanError, match=r"connections: 1 closed TCP connections.*stop it and start another"
        ) as caught:
            await box.reset(SandboxSpec())
        assert caught.value.what == "connections"
        assert caught.value.retryable


def hurry(base: Path | None) -> None:
    """Give the resets of a provider's sandboxes less time."""
    assert base is not None
    program = base / "program" / "ale_sandbox" / "resident" / "reset" / "cleanup.py"
    program.write_text(program.read_text().replace("DEADLINE_S = 10.0", "DEADLINE_S = 0.05"))
    for compiled in (program.parent / "__pycache__").glob("cleanup.*"):
        compiled.unlink()


async def test_what_cannot_be_removed_in_time_is_given_up(wrapped: LocalSandboxProvider) -> None:
    hurry(wrapped.base)
    async with await wrapped.start_sandbox(SandboxSpec()) as box:
        await box.exec("cd /tmp; python3 -c 'import os\nfor i in range(50_000): os.close(os.open(str(i), os.O_CREAT))'")
        with pytest.raises(UncleanError, match="could not be cleared and checked within"):
            await box.reset(SandboxSpec())
        assert (await box.exec("echo on")).stdout == b"on\n"


async def test_the_resident_listens_meanwhile(wrapped: LocalSandboxProvider) -> None:
    async with await wrapped.start_sandbox(SandboxSpec()) as box:
        fresh = (await box.exec("ls -A /tmp; echo on")).stdout
        await box.exec(
            "cd /tmp; python3 -c 'import os\nfor i in range(100_000): os.close(os.open(str(i), os.O_CREAT))'"
        )
        resetting = asyncio.ensure_future(box.reset(SandboxSpec()))
        await asyncio.sleep(0.05)
        if not resetting.done():
            for call in (box.exec("true"), box.download("x"), box.reset(SandboxSpec())):
                (refusal,) = await asyncio.gather(call, return_exceptions=True)
                assert resetting.done() or re.search(r"being reset|cannot be shown", str(refusal))
        await resetting
        assert (await box.exec("ls -A /tmp; echo on")).stdout == fresh


async def test_a_sandbox_that_is_stopped_in_the_middle_of_a_reset_is_gone(wrapped: LocalSandboxProvider) -> None:
    box = await wrapped.start_sandbox(SandboxSpec())
    await box.exec("cd /tmp; python3 -c 'import os\nfor i in range(100_000): os.close(os.open(str(i), os.O_CREAT))'")
    resetting = asyncio.ensure_future(box.reset(SandboxSpec()))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await box.stop()
    assert time.monotonic() - began < 20
    (end,) = await asyncio.gather(resetting, return_exceptions=True)
    assert end is None or isinstance(end, SandboxError), "where this process was held up, it was done before"
    assert await wrapped.list() == []


async def test_a_reset_sandbox_is_listed_with_its_new_labels(wrapped: LocalSandboxProvider) -> None:
    async with await wrapped.start_sandbox(SandboxSpec(labels={"episode": "1", "run": "other"})) as box:
        await box.reset(SandboxSpec(labels={"task": "t"}))
        (line,) = await wrapped.list()
        assert (line.id, line.labels) == (box.id, {"run": "r1", "task": "t"})


async def test_commands_of_before_are_not_in_the_way_of_later_ones(wrapped: LocalSandboxProvider) -> None:
    async with await wrapped.start_sandbox(SandboxSpec()) as box:
        running = [asyncio.ensure_future(box.exec(f"sleep 60; echo {i}")) for i in range(5)]
        await asyncio.sleep(0.1)
        await box.reset(SandboxSpec())
        ended = await asyncio.gather(*running)
        assert {done.exit_code for done in ended} == {137}
        assert (await box.exec("echo on")).stdout == b"on\n"


async def test_another_home_is_refused(wrapped: LocalSandboxProvider) -> None:
    async with await wrapped.start_sandbox(SandboxSpec()) as box:
        with pytest.raises(SandboxError, match="it was started with another HOME"):
            await box.reset(SandboxSpec(env={"HOME": "/tmp/mine"}))


async def test_without_isolation_there_is_no_reset() -> None:
    async with provider_for("none") as provider:
        assert not issubclass(provider.sandbox_type, Resets)
        async with await provider.start_sandbox(SandboxSpec(network="full")) as box:
            assert not isinstance(box, Resets)


def test_an_agent_that_is_the_same_user_as_the_resident_is_seen_through(as_user: Callable[[str], list[str]]) -> None:
    fresh, reset, *unclean = as_user("reset_as_user.py")
    assert reset == fresh
    assert fresh.startswith("[b'drwxr-xr-x', b'agent', b'drwxrwxrwt', b'agent', b'.:', b'/tmp:'")
    assert fresh.endswith("b'1', b'0']")
    assert unclean == ["prlimit 0 resident", "renice 0 resident", "taskset 0 resident"]
