"""One connection to the endpoint, with deadlines for a client that owes it something.

uvicorn ends connections on which nothing happens after an answer, and no others. Here a deadline runs too while a request's
head is not complete, and while the rest of a body comes that was answered before its end. Neither gets longer by bytes that trickle.
The body of a request that is being read has a deadline of its own, in `http`.
"""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ale.endpoint.dialects.dialect import openai_error

HEAD_S = 10.0
"""How long the head of a request, or the unread rest of a body, may take to come."""


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1, whose clients may not take for ever."""

    owing: asyncio.TimerHandle | None = None
    """Ends the connection, unless what is owed comes before."""

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
        """Answer what is not HTTP. Which API was meant cannot be known."""
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
        elif self.owing is None:
            self.owing = self.loop.call_later(HEAD_S, self.transport.close)

    def _settle(self) -> None:
        if self.owing is not None:
            self.owing.cancel()
            self.owing = None
