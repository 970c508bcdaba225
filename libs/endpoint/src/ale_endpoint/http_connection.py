"""One connection to the endpoint, with deadlines for slow clients.

uvicorn closes connections that are idle after an answer, and no others. Here a deadline also runs while the head of a
request is incomplete, and while the rest of a body arrives that was answered before its end. Bytes that trickle in do
not extend it. `http_app.py` has a deadline of its own for the body of a request that is being read.
"""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ale_endpoint.dialects.dialect import openai_error

HEAD_S = 10.0
"""How long the head of a request, or the unread rest of a body, may take to arrive."""


class DeadlineConnection(H11Protocol):
    """uvicorn's HTTP/1.1 connection, which is closed at these deadlines."""

    deadline: asyncio.TimerHandle | None = None
    """Closes the connection at the deadline."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, in OpenAI's shape: the API is not known."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        body = json.dumps(
            openai_error(400, "invalid_http", "The request is not valid HTTP/1.1, or its head is too large.")
        ).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch(self) -> None:
        answered = self.conn.our_state in (h11.DONE, h11.MUST_CLOSE)
        head = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        if not (head or (answered and self.conn.their_state is h11.SEND_BODY)):
            self._settle()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(HEAD_S, self.transport.close)

    def _settle(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
