"""What uvicorn's connections lack: bounds on the heads of requests, and one packet for a small answer.

1. A head may be so long and take so long. Otherwise, whoever reaches the port could hold connections open, or fill the
   memory with one header, before any token is asked for. Bodies have their own bounds (`ale_rock.admin.body_limits`).
2. Head and body of an answer are written together: each call of the kernel costs more than what it carries.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 256 << 10
JOINED_BYTES = 64 << 10
"""So much is held back at most."""
SLOW = "408 Request Timeout", "The head of the request comes too slowly."
LONG = "431 Request Header Fields Too Large", f"The head of the request is longer than {MOST_HEAD_BYTES >> 10} KiB."


class JoinedWrites:
    """A transport that writes together what is written in one step of the loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._pieces: list[bytes] = []
        self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write soon; what is large at once, since to join it is to copy it."""
        if len(data) > JOINED_BYTES:
            self._flush()
            if not self._transport.is_closing():
                self._transport.write(data)
            return
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)
        self._bytes += len(data)
        if self._bytes > JOINED_BYTES:
            self._flush()

    def close(self) -> None:
        """Close once everything is written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        pieces, self._pieces, self._bytes = self._pieces, [], 0
        if pieces and not self._transport.is_closing():
            self._transport.write(b"".join(pieces))  # `writelines` of some Pythons never tells the writer to pause


def bounded_protocol(head_s: float) -> type[HttpToolsProtocol]:
    """Return uvicorn's protocol with bounds."""

    class BoundedHeads(HttpToolsProtocol):
        """Refuses a head that is slow or long, and hangs up."""

        _waiting: asyncio.TimerHandle | None = None
        _read = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._done()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._waiting is not None:
                self._read += len(data)
                if self._read > MOST_HEAD_BYTES:
                    self._refuse(*LONG)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._wait()

        def on_headers_complete(self) -> None:
            self._done()
            super().on_headers_complete()

        def _wait(self) -> None:
            if self._waiting is None:
                self._read = 0
                self._waiting = self.loop.call_later(head_s, self._refuse, *SLOW)

        def _done(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

        def _refuse(self, status: str, sentence: str) -> None:
            self._done()
            if self.transport.is_closing():
                return
            if self.cycle is None or self.cycle.response_complete:  # else it would be a part of another answer
                lines = f"HTTP/1.1 {status}", "content-type: text/plain", f"content-length: {len(sentence)}"
                self.transport.write("\r\n".join([*lines, "connection: close", "", sentence]).encode())
            self.transport.close()

    return BoundedHeads
