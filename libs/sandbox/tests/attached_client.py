"""What the tests of attaching share: a client that sends what it likes to the process that owns a sandbox."""

from __future__ import annotations

import asyncio
from typing import Any

from ale.specs.sandbox import SandboxSpec
from ale_sandbox.resident.frames import DONE, EXEC, frame, take_frame, unpack
from ale_sandbox.sandboxes.attach_client import connect
from ale_sandbox.sandboxes.attach_server import NAME, OPEN


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
    return bool((await asyncio.wait_for(box.exec("echo on"), 60)).stdout == b"on\n")


async def eventually(holds: Any, seconds: float = 120.0) -> bool:
    """Whether something comes to hold."""
    for _ in range(int(seconds / 0.05)):
        if holds():
            return True
        await asyncio.sleep(0.05)
    return False
