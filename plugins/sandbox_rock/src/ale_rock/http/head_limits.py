"""Bounds on the heads of requests, which uvicorn lacks.

A head that is too long or too slow is refused, and its connection closed. Bodies have bounds of their own
(`ale_rock.admin.body_limits`).

This extends a class of uvicorn, because no setting of it does the same. Measured without it: one header of 64 MiB takes
65 MiB of memory before any token is asked for, and a connection that has sent 8 bytes of a head and nothing more is
still open after 30 s.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 256 << 10
SLOW = "408 Request Timeout", "The head of the request comes too slowly."
LONG = "431 Request Header Fields Too Large", f"The head of the request is longer than {MOST_HEAD_BYTES >> 10} KiB."


def bounded_protocol(head_s: float) -> type[HttpToolsProtocol]:
    """Return uvicorn's HTTP protocol with these bounds; a head may take `head_s` seconds."""

    class BoundedHeads(HttpToolsProtocol):
        """Refuses a head that is slow or long, and hangs up."""

        _waiting: asyncio.TimerHandle | None = None
        _read = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
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
