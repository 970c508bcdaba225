"""An attached client may send anything, read slowly or hang up, and the owner of the sandbox goes on."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any

import pytest

from ale.errors import SandboxError
from ale.specs.sandbox import Resources
from ale_sandbox.resident import frames
from ale_sandbox.resident.frames import CANCEL, DONE, EXEC, FAILED, INIT, READ, RECONNECT, RESET, SHELL, STREAM, frame
from ale_sandbox.sandboxes import attach_client, attach_server
from ale_sandbox.sandboxes.attach_server import BACKLOG_BYTES, MOST_CLIENTS, OPEN, REQUEST_BYTES

from .attached_client import Client, command, eventually, spec_for, works


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
