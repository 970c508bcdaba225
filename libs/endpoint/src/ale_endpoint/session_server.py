"""Serves model sessions over HTTP, for scaffolds whose agents are processes of their own.

    async with SessionServer() as server:            # once, such as in the scaffold's start() and close()
        with server.open(session) as access:         # once an episode, in the scaffold's run()
            ...  # the agent finds the model at access.base_url, with the key access.api_key

1. The server listens on a free loopback port, and at a Unix socket where one is named.
2. `open` makes a key, which is good for this one session and for as long as the block lasts.
3. Sessions are found by the hashes of their keys, so that the time of a look-up reveals nothing about a key.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ale.errors import AleError
from ale.messages import MODEL
from ale.specs.scaffold import ModelSession
from ale_endpoint.dialects.fields import Server
from ale_endpoint.dialects.pictures import Pictures
from ale_endpoint.http_app import build_app
from ale_endpoint.server import listener_at, serving
from ale_endpoint.unix_socket import unix_listener

log = logging.getLogger("ale.endpoint")


@dataclass(frozen=True, slots=True)
class Access:
    """The address and key with which an agent reaches its session."""

    origin: str
    """The URL without the API's path, as clients of Anthropic want it."""
    api_key: str = field(repr=False)

    @property
    def base_url(self) -> str:
        """The URL that clients of OpenAI want; it ends in `/v1`."""
        return f"{self.origin}/v1"


class SessionServer:
    """Serves model sessions over HTTP while its context lasts. `pictures` says what is done with those of requests:
    `refuse` or `leave_out`, since a session records text alone."""

    models = (MODEL,)
    server: Server = "session"

    def __init__(self, unix: Path | None = None, pictures: Pictures = "refuse") -> None:
        self.origin = ""
        """Where it listens, such as `http://127.0.0.1:34567`."""
        self.pictures = pictures
        self._unix = unix
        self._sessions: dict[bytes, ModelSession] = {}
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Listen. Raises `ConfigError` where the Unix socket cannot be made."""
        async with AsyncExitStack() as stack:
            listeners = [stack.enter_context(listener_at("127.0.0.1", 0))]
            if self._unix is not None:
                listeners.append(stack.enter_context(unix_listener(self._unix)))
            await stack.enter_async_context(serving(build_app(self), *listeners))
            self.origin = f"http://127.0.0.1:{listeners[0].getsockname()[1]}"
            self._stack = stack.pop_all()

    async def close(self) -> None:
        """Stop serving; calls that have no answer a second later are cut off. It may be called twice."""
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @contextmanager
    def open(self, session: ModelSession) -> Iterator[Access]:
        """Serve a session while the block lasts; afterwards its key opens nothing."""
        key = secrets.token_urlsafe(24)
        self._sessions[_digest(key)] = session
        try:
            yield Access(self.origin, key)
        finally:
            del self._sessions[_digest(key)]

    def by_key(self, key: str) -> ModelSession | None:
        """The open session that this key belongs to."""
        return self._sessions.get(_digest(key))

    def note_refusal(self, key: str, sent: bytes, refusal: AleError) -> None:
        """The refusal is the session's fault until a later call has an answer."""
        session = self.by_key(key)
        if session is not None:
            session.fault = refusal
            log.warning("session %s: a request was refused: %s", session.id, refusal)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
