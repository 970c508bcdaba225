"""The host's end of the connection to a resident."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ale.errors import SandboxError
from ale_sandbox.host import shell
from ale_sandbox.host.channel import Channel
from ale_sandbox.host.shell import ResidentShell
from ale_sandbox.resident.frames import DATA, frame


class ForeignTransport:
    """As uvloop's are, which Ray takes where it is installed: none of asyncio's by inheritance."""

    def write(self, data: bytes) -> None:
        self.written = data


def test_any_event_loops_transport_will_do() -> None:
    channel, transport = Channel("box"), ForeignTransport()
    channel.connection_made(transport)  # type: ignore[arg-type]
    channel.transport.write(b"x")
    assert transport.written == b"x"


async def test_a_shell_is_waited_for_while_the_resident_answers_others_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    channel, loop = await Channel.open("box", ours), asyncio.get_running_loop()
    monkeypatch.setattr(shell, "GRACE_S", 0.0)
    with theirs:
        channel.heard_at = loop.time() + 3600.0  # as if it had just answered somebody, for as long as this test takes
        opening = asyncio.create_task(ResidentShell.open(channel, None, None, "agent"))
        await loop.sock_recv(theirs, 1 << 16)
        assert channel.busy, "a sandbox in which a shell is being opened is not idle"
        await loop.sock_sendall(theirs, frame(1, DATA, [b"name"]))
        assert (await opening).name == b"name"
        assert not channel.busy
        assert channel.heard_at < loop.time() + 1800.0, "whatever it sends is heard"
        with pytest.raises(SandboxError, match="did not answer within 0 s"):
            await ResidentShell.open(channel, None, None, "agent")
    assert channel.closed.is_set() or channel.transport is None or channel.transport.is_closing()
