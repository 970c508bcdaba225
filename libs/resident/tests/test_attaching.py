"""The door: whoever comes through it, the owner goes on. Real sandboxes, and clients that do not behave."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ale.errors import SandboxError
from ale.specs.driver import Channel, DriverContext
from ale.specs.sandbox import Resources, SandboxSpec
from ale_resident.host.owner import start_time
from ale_resident.resident import frames
from ale_resident.resident.frames import (
    CANCEL,
    DONE,
    EXEC,
    FAILED,
    INIT,
    READ,
    RECONNECT,
    RESET,
    SHELL,
    STREAM,
    frame,
    take_frame,
    unpack,
)
from ale_resident.sandboxes import attach_client, attach_server
from ale_resident.sandboxes.attach_client import attach, connect
from ale_resident.sandboxes.attach_server import BACKLOG_BYTES, MOST_CLIENTS, NAME, OPEN, REQUEST_BYTES, STATS
from ale_testing.sandbox_providers import answers, provider_of

SECRET = "hunter2-and-more"


class RedactingChannel(Channel):
    """Knows one secret."""

    def redact(self, text: str) -> str:
        return text.replace(SECRET, "${oc.env:KEY}")


def provider_with_secrets(name: str) -> Any:
    """A provider by name and isolation, not started yet; the door must not tell its secrets."""
    use, _, isolation = name.partition("-")
    return provider_of(
        use, DriverContext(channel=RedactingChannel()), **({"isolation": isolation} if isolation else {})
    )


@pytest.fixture(
    params=[
        pytest.param("local", marks=pytest.mark.bwrap),
        "local-none",
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("podman", marks=pytest.mark.podman),
    ]
)
def use(request: pytest.FixtureRequest) -> str:
    """Each kind of provider that has a door."""
    if request.param in ("docker", "podman") and not answers(request.param):
        pytest.skip(f"{request.param} does not answer")
    return str(request.param)


@pytest.fixture
async def any_provider(use: str) -> AsyncIterator[Any]:
    """One of them, started."""
    async with provider_with_secrets(use) as started:
        yield started


@pytest.fixture
async def local() -> AsyncIterator[Any]:
    """The one that needs no engine."""
    async with provider_with_secrets("local") as started:
        yield started


@pytest.fixture
async def box(local: Any) -> AsyncIterator[Any]:
    async with await local.start_sandbox(spec_for(local)) as started:
        yield started


def spec_for(provider: Any, **more: Any) -> SandboxSpec:
    return SandboxSpec(network="none" if "network_none" in provider.capabilities else "full", **more)


class Client:
    """A connection to a door that sends what it likes, and reads when it likes."""

    def __init__(self, provider: Any) -> None:
        self.sock = connect(provider.base / NAME)
        self.inbox = bytearray()

    async def send(self, *frames: bytes) -> None:
        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(self.sock, b"".join(frames)), 30)

    async def answer(self, within_s: float = 30.0) -> tuple[int, bytes, list[bytes]] | None:
        """The next frame; None where the door has closed."""
        while (whole := take_frame(self.inbox)) is None:
            try:
                piece = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.sock, 1 << 20), within_s)
            except ConnectionError:
                return None
            if not piece:
                return None
            self.inbox += piece
        return whole[0], whole[1], unpack(whole[2])

    async def soon(self) -> tuple[int, bytes, list[bytes]] | None:
        """The next frame; None where there is none within a second."""
        try:
            return await self.answer(1.0)
        except TimeoutError:
            return None

    async def opened(self, box: Any) -> Client:
        """This one, with the sandbox named."""
        await self.send(frame(1, OPEN, [box.id.encode()]))
        answer = await self.answer()
        assert answer is not None
        assert answer[:2] == (1, DONE)
        return self

    def close(self) -> None:
        self.sock.close()


def command(number: int, line: str, cap: int = 1 << 20) -> bytes:
    """The frame of a command."""
    return frame(number, EXEC, [b"60", str(cap).encode(), b"agent", b"", line.encode(), b""])


async def works(box: Any) -> bool:
    """Whether the owner gets an answer soon."""
    return bool((await asyncio.wait_for(box.exec("echo on"), 20)).stdout == b"on\n")


async def eventually(holds: Any, seconds: float = 20.0) -> bool:
    """Whether something comes to hold."""
    for _ in range(int(seconds / 0.05)):
        if holds():
            return True
        await asyncio.sleep(0.05)
    return False


async def test_a_provider_that_was_not_started_attaches_through_the_owners_door(any_provider: Any) -> None:
    async with await any_provider.start_sandbox(spec_for(any_provider, files={"a": b"1"})) as box:
        other = type(any_provider)(any_provider.config, DriverContext())
        async with await other.attach(box.id) as there:
            assert there.spec == box.spec.model_copy(update={"files": {}})
            assert (await there.exec("cat a; exit 3")).exit_code == 3
        assert await works(box)
        log = await box.logs()
        assert f"process {os.getpid()} is attached\n" in log
        assert f"(process {os.getpid()}) exec" in log
        assert f"process {os.getpid()} has detached\n" in log


async def test_the_attach_server_is_the_users_alone_and_goes_with_the_provider(local: Any) -> None:
    path: Path = local.base / NAME
    found = os.stat(path)
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_uid == os.getuid()
    await local.close()
    with pytest.raises(FileNotFoundError):
        os.stat(path)


VISITOR = """
import os, socket, sys
folder, frame, uid = sys.argv[1:]
os.chdir(folder)
if int(uid) != os.getuid():
    os.setgroups([])
    os.setuid(int(uid))
with socket.socket(socket.AF_UNIX) as sock:
    try:
        sock.connect(".attach")
        sock.sendall(bytes.fromhex(frame))
        print(len(sock.recv(100)))
    except (BrokenPipeError, ConnectionResetError):
        print(0)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
async def test_another_user_is_turned_away_even_where_the_file_would_let_it_in(local: Any, box: Any) -> None:
    os.chmod(local.base / NAME, 0o666)
    heard = []
    for uid in (os.getuid(), 65534):
        command = [sys.executable, "-c", VISITOR, str(local.base), frame(1, OPEN, [box.id.encode()]).hex(), str(uid)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        heard.append(int(done.stdout))
    assert heard[0] > 0
    assert heard[1] == 0


async def test_no_door_is_seen_from_inside(any_provider: Any) -> None:
    if "isolated" not in any_provider.capabilities:
        return
    async with await any_provider.start_sandbox(spec_for(any_provider)) as box:
        look = "find / -path /proc -prune -o -path /usr -prune -o -path /sys -prune -o -name '.d*r' -print"
        await box.exec("touch /tmp/.decoder")
        found = (await box.exec(f"{look} 2>/dev/null; ls -a {any_provider.base}")).stdout
        assert found == b"/tmp/.decoder\n"


async def test_nonsense_ends_a_connection_and_nothing_else(local: Any, box: Any) -> None:
    dice = random.Random(7)
    first = frame(1, OPEN, [box.id.encode()])
    for junk in (
        b"",
        b"\0",
        first[:5],
        frame(1, EXEC, [b"x"]),
        frame(1, OPEN, []),
        frame(1, OPEN, [b"no-such"]),
        frame(1, OPEN, [b"\xff\0"]),
        first + b"\0\0\0\2X\0\0\0\3abc",
        first + b"\0\0\0\2X\0\0\0\x04\0\0\0\x09",
        first + b"\xff" * 9,
        *(dice.randbytes(dice.randrange(400)) for _ in range(10)),
        *(first + dice.randbytes(300) for _ in range(10)),
    ):
        client = Client(local)
        await client.send(junk)
        client.sock.shutdown(socket.SHUT_WR)
        while await client.answer() is not None:
            pass
        client.close()
    assert await works(box)
    assert await eventually(lambda: not box.channel.relays)


async def test_requests_that_make_no_sense_have_a_failure_as_answer(local: Any, box: Any) -> None:
    client = await Client(local).opened(box)
    for request in (frame(5, EXEC, []), frame(5, EXEC, [b"x"] * 6), frame(5, READ, [b"a"]), frame(5, b"\xfe", [b"?"])):
        await client.send(request)
        answer = await client.answer()
        assert answer is not None
        assert answer[:2] == (5, FAILED), request
    await client.send(frame(6, CANCEL, []), command(7, "echo still"))  # of the first nothing is there to be cancelled
    answer = await client.answer()
    assert answer is not None
    assert (answer[0], answer[1], answer[2][4]) == (7, DONE, b"still\n")
    client.close()
    assert await works(box)


async def test_what_only_the_owner_may_ask_is_refused(local: Any, box: Any) -> None:
    client = await Client(local).opened(box)
    for kind in attach_server.FORBIDDEN:
        await client.send(frame(9, kind, [b"users", b"/tmp", b"/bin/false", b"", b"", b""]))
        answer = await client.answer()
        assert answer is not None
        assert (answer[0], answer[1], answer[2][0]) == (9, FAILED, b"1"), kind
    assert set(attach_server.FORBIDDEN) == {INIT, RECONNECT, RESET}
    client.close()
    assert await works(box)


async def test_a_request_that_is_too_long_is_refused_and_the_next_one_served(local: Any, box: Any) -> None:
    async with await local.attach(box.id) as there:
        with pytest.raises(SandboxError, match=r"a request from .* may hold 32 MiB, and this one holds more"):
            await there.exec("cat", stdin=bytes(REQUEST_BYTES + 1))
        assert (
            await there.exec("wc -c", stdin=bytes(REQUEST_BYTES - 1000))
        ).stdout == f"{REQUEST_BYTES - 1000}\n".encode()


async def test_a_client_that_does_not_read_is_cut_off_and_holds_nobody_up(local: Any) -> None:
    async with await local.start_sandbox(spec_for(local, resources=Resources(disk_mib=256))) as box:
        await box.exec("head -c 50000000 /dev/zero > large")
        client = await Client(local).opened(box)
        for number in range(2, 6):
            await client.send(frame(number, READ, [b"large", b"1000000000"]))
        assert await works(box)
        assert await eventually(lambda: not box.channel.relays), "what it asked for is dropped"
        assert await works(box)
        received = 0
        while (answer := await client.answer()) is not None:
            received += sum(len(field) for field in answer[2])
        assert received < BACKLOG_BYTES + (8 << 20), "no more was kept for it than the limit"
        client.close()


async def test_a_client_that_takes_no_output_waits_alone(local: Any, box: Any) -> None:
    client = await Client(local).opened(box)
    await client.send(frame(2, STREAM, [b"60", str(1 << 20).encode(), b"agent", b"", b"echo $$ > pid; exec yes", b""]))
    assert await eventually(lambda: box.channel.relays)
    for _ in range(5):
        assert await works(box)
    await asyncio.sleep(0.5)
    received = 0
    while (answer := await client.soon()) is not None:
        received += sum(len(field) for field in answer[2])
    assert 0 < received <= 1 << 20, "the command waits: it was granted no more than that"
    assert await works(box)
    client.close()
    assert await eventually(lambda: not box.channel.relays)


async def test_a_shell_that_is_only_open_keeps_no_sandbox_from_being_idle(local: Any) -> None:
    async with await local.start_sandbox(spec_for(local, idle_s=1.0)) as box:
        client = await Client(local).opened(box)
        await client.send(frame(2, SHELL, [b"agent", b""]))
        last = None
        while (answer := await client.answer()) is not None:
            last = answer
        assert last == (0, attach_server.GONE, [b"it was idle for 1 s"])
        client.close()


async def test_hanging_up_in_the_middle_ends_what_was_begun(local: Any, box: Any) -> None:
    for _ in range(5):
        client = await Client(local).opened(box)
        await client.send(
            command(2, "echo $$ > pid; exec sleep 4711"), command(3, "sleep 4711"), command(4, "true")[:20]
        )
        assert await eventually(lambda: len(box.channel.relays) == 2)
        client.close()
        assert await eventually(lambda: not box.channel.relays)
    assert await works(box)
    for _ in range(100):
        if (await box.exec("pgrep -f 'sleep 471[1]' || cat /proc/[0-9]*/cmdline | grep -a 471[1]")).stdout == b"":
            return
        await asyncio.sleep(0.1)
    raise AssertionError("its commands are ended")


async def test_so_many_may_be_attached_and_no_more(local: Any, box: Any) -> None:
    clients = [await Client(local).opened(box) for _ in range(MOST_CLIENTS)]
    late = Client(local)
    await late.send(frame(1, OPEN, [box.id.encode()]))
    assert await late.answer() is None
    for client in (*clients, late):
        client.close()
    assert await eventually(lambda: not local.attach_server._clients)
    again = await Client(local).opened(box)
    again.close()
    assert await works(box)


async def test_an_owner_that_is_gone_is_told_of(local: Any) -> None:
    with pytest.raises(SandboxError, match=r"that started the sandbox x is gone; `ale sandbox prune` removes"):
        await attach(local.folder, "999999-1", "x")
    other = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        said = rf"process {other.pid} owns the sandbox x, and attaching to it failed: it is"
        with pytest.raises(SandboxError, match=said):
            await attach(local.folder, f"{other.pid}-{start_time(other.pid)}", "x")
    finally:
        other.kill()
        await other.wait()


async def test_the_reason_of_the_end_reaches_who_is_attached(local: Any) -> None:
    box = await local.start_sandbox(spec_for(local, lifetime_s=1.0))
    async with await local.attach(box.id) as there:
        with pytest.raises(SandboxError, match=f"The sandbox {box.id} is out of reach: its lifetime is over"):
            await there.exec("sleep 60")


async def test_closing_a_provider_sends_away_who_is_attached(local: Any) -> None:
    box = await local.start_sandbox(spec_for(local))
    there = await local.attach(box.id)
    stuck = Client(local)  # has said nothing yet
    running = asyncio.ensure_future(there.exec("sleep 60"))
    await asyncio.sleep(0.1)
    await asyncio.wait_for(local.close(), 30)
    with pytest.raises(SandboxError, match="is out of reach: it was stopped"):
        await running
    assert await stuck.answer() is None
    stuck.close()
    await there.stop()


async def test_the_journal_holds_no_secret_and_nothing_that_a_terminal_would_obey(local: Any, box: Any) -> None:
    await box.exec(f"echo {SECRET} \x1b]0;title\x07\nsecond ü ✓")
    await box.exec(f": {'x' * 190}{SECRET}")
    async with await local.attach(box.id) as there:
        await there.exec(f"false {SECRET}")
        log = await there.logs()
    assert "hunter2" not in log
    assert "echo ${oc.env:KEY} \\x1b]0;title\\x07\\nsecond ü ✓\n" in log
    assert "false ${oc.env:KEY}\n" in log
    assert "exit code 1\n" in log
    assert all(part.isprintable() for part in log.splitlines())


async def test_the_journal_tells_of_network_that_was_refused(local: Any) -> None:
    spec = SandboxSpec(network="allow", allow=("192.0.2.1:443",))
    async with await local.start_sandbox(spec) as box:
        assert (await box.exec("exec 3<>/dev/tcp/192.0.2.7/80")).exit_code != 0
        assert await eventually(lambda: "network refused: tcp 192.0.2.7:80: " in str(box.journal))


async def test_the_journal_says_why_a_sandbox_ended_also_afterwards(local: Any) -> None:
    box = await local.start_sandbox(spec_for(local))
    await box.upload({"one": b"1", "two": b"2"})
    await box.download("one")
    await box.stop()
    log = await box.logs()
    assert "upload: one, two\n" in log
    assert "download: one\n" in log
    assert "the sandbox ends: it was stopped\n" in log


async def test_the_journal_is_bounded(local: Any, box: Any) -> None:
    for number in range(1200):
        box.note(f"line {number} {'y' * 5000}")
    log = str(box.journal)
    assert log.count("\n") == 1000
    assert "line 1199 " in log
    assert "line 199 " not in log
    assert len(log) < 300_000


async def test_stats_tell_what_files_take(any_provider: Any) -> None:
    async with await any_provider.start_sandbox(spec_for(any_provider)) as box:
        before = await box.stats()
        assert before.disk_bytes is not None
        await box.exec(
            "head -c 20000000 /dev/zero > large; mkdir -p d; head -c 5000000 /dev/zero > /tmp/more; rm -f /tmp/more"
        )
        after = await box.stats()
        assert after.disk_bytes is not None
        assert 19_000_000 < after.disk_bytes - before.disk_bytes < 24_000_000
        isolated = "isolated" in any_provider.capabilities
        expected = (0, 0) if isolated else (None, None)
        assert (after.network_in_bytes, after.network_out_bytes) == expected
        other = type(any_provider)(any_provider.config, DriverContext())
        async with await other.attach(box.id) as there:
            assert (await there.stats()).disk_bytes == after.disk_bytes


async def test_asking_what_it_uses_is_no_work(local: Any) -> None:
    async with await local.start_sandbox(spec_for(local, idle_s=1.0)) as box:
        client = await Client(local).opened(box)
        for number in range(2, 400):
            await client.send(frame(number, STATS, []))
            answer = await client.answer()
            if answer is None or answer[1] == attach_server.GONE:
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("a sandbox that is only looked at is idle")
        client.close()


def test_no_two_kinds_of_frames_are_the_same() -> None:
    kinds = [
        (name, value)
        for module in (frames, attach_server)
        for name, value in vars(module).items()
        if isinstance(value, bytes) and len(value) == 1 and (module is frames or not hasattr(frames, name))
    ]
    assert len(kinds) >= 10
    assert len({value for _, value in kinds}) == len(kinds), kinds
    assert attach_client.OPEN == OPEN
