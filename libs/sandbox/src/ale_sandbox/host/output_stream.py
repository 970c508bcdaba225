"""Streams a command's output as it is written: the host's side. In the sandbox, `resident/output_stream.py` serves it.

The resident may send as many bytes as it was granted: `WINDOW` at first, and then as many as the reader takes. A piece
costs its bytes and `PIECE_COST`. So what waits here for a slow reader is bounded; a resident that sends more is ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import replace

from ale.errors import SandboxError
from ale.specs.sandbox import ExecResult
from ale.specs.sandbox_protocols import Output
from ale_sandbox.host.channel import Channel
from ale_sandbox.host.commands import GRACE_S, NO_COMMAND, close_unresponsive, result
from ale_sandbox.resident.frames import ACK, CANCEL, DONE, FAILED, PIECE, PIECE_COST, STREAM, frame, unpack

WINDOW = 1 << 20
GRANT_AT = WINDOW // 8
"""The reader takes this much before it is granted again, which saves frames; a command never waits for a reader that
keeps up."""


class Stream:
    """Output on its way to a reader."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.number = channel.number()
        self.waiting: deque[Output] = deque()
        self.granted, self.taken = WINDOW, 0
        self.answer: tuple[bytes, list[bytes]] | None = None
        self.news = asyncio.Event()

    def receive(self, kind: bytes, payload: bytes) -> None:
        """Take a frame of the resident. Raises `ValueError` for one that it may not send."""
        fields = unpack(payload)
        if kind in (DONE, FAILED):
            self.answer = kind, fields
        elif kind == PIECE and len(fields) == 2 and fields[0] in (b"1", b"2") and fields[1]:
            self.granted -= len(fields[1]) + PIECE_COST
            if self.granted < 0:
                raise ValueError("it sent more output than was granted")
            self.waiting.append(Output("stdout" if fields[0] == b"1" else "stderr", fields[1]))
        else:
            raise ValueError(f"it sent an invalid piece of output, {kind!r}")
        self.news.set()

    def take(self) -> Output:
        """Return the next piece to the reader; the resident may then send as much again."""
        piece = self.waiting.popleft()
        self.taken += len(piece.data) + PIECE_COST
        if self.taken >= GRANT_AT:
            self.granted += self.taken
            self.channel.write(frame(self.number, ACK, [str(self.taken).encode()]))
            self.taken = 0
        return piece


async def run(
    channel: Channel, fields: list[bytes] | None, timeout_s: float
) -> AsyncGenerator[Output | ExecResult, None]:
    """Run a command: yield its output, then its result without output. Closing the generator ends the command."""
    if fields is None:
        yield Output("stderr", NO_COMMAND.stderr)
        yield replace(NO_COMMAND, stderr=b"")
        return
    stream = Stream(channel)
    closing = asyncio.ensure_future(channel.closed.wait())
    closing.add_done_callback(lambda _: stream.news.set())
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    channel.relays[stream.number] = stream.receive
    channel.journal.record_request(stream.number, STREAM, fields)
    channel.write(frame(stream.number, STREAM, fields))
    try:
        while stream.answer is None or stream.waiting:
            while stream.waiting:
                yield stream.take()
                until = max(until, loop.time())  # output that waited for the reader comes now
            if stream.answer is None and channel.closed.is_set():
                raise channel.error()
            try:
                async with asyncio.timeout_at(until + GRACE_S):
                    while not (stream.answer or stream.waiting or channel.closed.is_set()):
                        await stream.news.wait()
                        stream.news.clear()
            except TimeoutError:
                raise close_unresponsive(channel) from None
        kind, answer = stream.answer
        if kind == FAILED:
            reason = answer[-1].decode("utf-8", "replace") if answer else "it does not say why"
            raise SandboxError(f"The sandbox {channel.sandbox_id} cannot run a command: {reason}.")
        done = result(channel, answer)
        if done.stderr:  # the command was not even started
            yield Output("stderr", done.stderr)
        yield ExecResult(done.exit_code, b"", b"", done.duration_s, done.timed_out)
    finally:
        closing.cancel()
        channel.relays.pop(stream.number, None)
        if stream.answer is None:
            channel.send(stream.number, CANCEL)
