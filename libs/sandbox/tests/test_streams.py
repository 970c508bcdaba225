"""Streams: what waits for a slow reader is bounded on either side, and a resident that somebody took over cannot change
that."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest

from ale.errors import SandboxError
from ale.registry.drivers import build_driver
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.sandbox import ExecResult, SandboxSpec
from ale.specs.sandbox_protocols import Output
from ale_sandbox.host import output_stream
from ale_sandbox.host.channel import Channel
from ale_sandbox.host.output_stream import WINDOW, Stream
from ale_sandbox.resident.frames import ACK, CANCEL, DONE, FAILED, PIECE, PIECE_COST, frame, take_frame

Frames = list[tuple[bytes, list[bytes]]]


@pytest.fixture
async def box() -> AsyncIterator[Any]:
    """A local sandbox."""
    driver: Any = build_driver("sandbox", PluginChoice(use="local"), DriverContext())
    async with driver as provider, await provider.start_sandbox(SandboxSpec()) as started:
        yield started


def stream_of(box: Any) -> Stream:
    """The one stream that there is."""
    (receive,) = box.channel.relays.values()
    found: Stream = receive.__self__
    return found


def resident_kib(box: Any) -> int:
    """The memory of a sandbox's resident."""
    lines = Path(f"/proc/{box.record.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.bwrap
@pytest.mark.parametrize("command", ["yes", "while :; do printf a; printf b >&2; done", "head -c 64000000 /dev/zero"])
async def test_what_waits_for_a_slow_reader_is_bounded(box: Any, command: str) -> None:
    before = resident_kib(box)
    async with aclosing(box.exec_stream(command)) as items:
        await anext(items)
        held = rounds = 0
        while rounds < 10 or (held <= WINDOW // 4 and rounds < 600):
            rounds += 1
            await asyncio.sleep(0.1)
            waiting = stream_of(box).waiting
            held = max(held, sum(len(piece.data) + PIECE_COST for piece in waiting))
            for _ in range(len(waiting) // 2):
                await anext(items)
        assert WINDOW // 4 < held <= WINDOW, "as much as was granted, and the command then waits"
        assert resident_kib(box) - before < 4096, "inside nothing waits at all"


@pytest.mark.bwrap
async def test_a_stream_that_nobody_holds_any_more_ends_its_command(box: Any) -> None:
    async for item in box.exec_stream("while :; do echo 1; sleep 0.05; done"):
        assert isinstance(item, Output)
        break
    gc.collect()
    for _ in range(1000):
        await asyncio.sleep(0.05)
        if (await box.exec("cat /proc/[0-9]*/cmdline | grep -ac 'echo [1]'")).stdout == b"0\n":
            return
    raise AssertionError("the command must end when its stream is collected")


@pytest.mark.bwrap
async def test_a_stream_is_told_of_in_the_log(box: Any) -> None:
    async with aclosing(box.exec_stream("echo hello; exit 3")) as items:
        assert [item async for item in items][-1].exit_code == 3
    lines = (await box.logs()).splitlines()
    assert "echo hello; exit 3" in lines[-2]
    assert lines[-1].endswith("exit code 3")


async def told(answers: Frames, take: int = 1 << 30) -> tuple[list[Output | ExecResult], list[bytes]]:
    """What a reader gets from a resident that answers so; and the kinds of frames that this one is sent."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs)
    channel = await Channel.open("fake", ours)
    for kind, fields in answers:
        writer.write(frame(1, kind, fields))
    got: list[Output | ExecResult] = []
    try:
        async with aclosing(output_stream.run(channel, [b"", b"", b"", b"", b""], 5.0)) as items:
            async for item in items:
                got.append(item)
                if len(got) == 1:
                    await asyncio.sleep(0.3)  # a reader that is slow at first
                if len(got) == take:
                    break
    finally:
        await asyncio.sleep(0.01)
        channel.close("the test is over")
        inbox, kinds = bytearray(), []
        with suppress(ConnectionError):  # it was cut off while it wrote
            inbox += await reader.read()
        while (whole := take_frame(inbox)) is not None:
            kinds.append(whole[1])
        writer.close()
    return got, kinds


RESULT = (DONE, [b"0", b"0", b"0", b"0.1", b"", b""])


@pytest.mark.parametrize(
    "answers",
    [
        [(PIECE, [b"1", b"x" * (WINDOW - PIECE_COST + 1)])],
        [(PIECE, [b"1", b"x" * 1000])] * (WINDOW // 1000),
        [(PIECE, [b"1", b"x"])] * (WINDOW // PIECE_COST),
        [(PIECE, [b"1", b""])],
        [(PIECE, [b"3", b"x"])],
        [(PIECE, [b"1"])],
        [(b"?", [b"1", b"x"])],
    ],
    ids=["a piece too large", "too many", "too many small ones", "empty", "of no output", "of nothing", "no piece"],
)
async def test_a_resident_that_sends_what_was_not_asked_for_is_cut_off(answers: Frames) -> None:
    with pytest.raises(SandboxError, match="sent an invalid frame"):
        await told([*answers, RESULT])


async def test_what_a_resident_answers_is_checked() -> None:
    got, _ = await told([(PIECE, [b"2", b"x"]), RESULT])
    assert got == [Output("stderr", b"x"), ExecResult(0, b"", b"", 0.1)]
    got, _ = await told([(DONE, [b"1", b"0", b"0", b"0", b"", b"no process"])])
    assert got == [Output("stderr", b"no process"), ExecResult(1, b"", b"", 0.0)], "a command that was not even started"
    with pytest.raises(SandboxError, match="gave an invalid answer"):
        await told([(DONE, [b"one"])])
    with pytest.raises(SandboxError, match="cannot run a command: too many files"):
        await told([(FAILED, [b"24", b"too many files"])])


async def test_what_is_taken_is_granted_again_and_a_reader_that_leaves_cancels() -> None:
    half = (PIECE, [b"1", b"x" * (WINDOW // 2 - PIECE_COST)])
    got, kinds = await told([half, half], take=1)
    assert (len(got), kinds[1:]) == (1, [ACK, CANCEL])
    _, kinds = await told([half, half, RESULT])
    assert CANCEL not in kinds
