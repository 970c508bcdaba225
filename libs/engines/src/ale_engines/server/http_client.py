"""The HTTP client of a server that runs an engine: JSON over connections that stay open, without a limit of its own.

The replica limits how many requests run at once, so the client never queues; a proxy of the environment is not used,
because the server is on this machine or on one of the user's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import aiohttp

from ale.errors import EngineError
from ale.specs.driver import Lifecycle

CONNECT_S = 10.0
"""Seconds in which a connection must be made."""
IDLE_S = 2.0
"""Seconds after which an idle connection is not used again. A server at a URL closes it after 5 s (uvicorn's default),
and a request that is sent at that very moment is lost."""
KEEP_ALIVE_S = 3600
"""Seconds after which a server that ALE starts closes an idle connection: on a busy machine seconds may go by between
the choice of a connection and the moment at which the request is sent."""


class ConnectionLost(EngineError):
    """The server cannot be reached, or went away before it answered."""


class NoAnswer(ConnectionLost):
    """The server did not answer in time; it may be busy."""


class ServerClient(Lifecycle):
    """Requests to one server, at a URL or at a Unix socket."""

    def __init__(self, name: str, url: str, socket: Path | None = None) -> None:
        """`name` is the server's in messages. With `socket`, the host of `url` is not used."""
        self._name = name
        self._url = url.rstrip("/")
        self._socket = socket
        self._session: aiohttp.ClientSession | None = None
        self._answers: set[aiohttp.ClientResponse] = set()
        """Those that are being read."""

    async def start(self) -> None:
        """Open the session; it connects with the first request."""
        connector: aiohttp.BaseConnector
        if self._socket is not None:
            connector = aiohttp.UnixConnector(str(self._socket), limit=0, keepalive_timeout=IDLE_S)
        else:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
        self._session = aiohttp.ClientSession(
            connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=2**20
        )

    async def close(self) -> None:
        """Close all connections; requests that run fail with `ConnectionLost`."""
        session, self._session = self._session, None
        for answer in list(self._answers):
            answer.close()  # the session closes the connection under it and does not wake its reader
        if session is not None:
            await session.close()

    async def post(self, path: str, body: Any = None, timeout_s: float | None = None) -> Any:
        """Send `body` as JSON and return the answer's JSON (None if it is empty). Raises `ConnectionLost` if there is
        no answer, and another `EngineError` with the server's own words if it refuses the request."""
        async with self._ask("POST", path, encode(body), timeout_s) as answer:
            content = await answer.read()
        if not content:
            return None
        try:
            return json.loads(content)
        except ValueError:
            raise EngineError(f"{self._name} answered {path} with something that is not JSON.") from None

    async def read_lines(self, path: str, body: Any, timeout_s: float) -> AsyncGenerator[bytes]:
        """Send `body` as JSON and yield the answer's lines as they come. Raises as `post` does; `ConnectionLost` may
        come after any line."""
        async with self._ask("POST", path, encode(body), timeout_s) as answer:
            async for line in answer.content:
                yield line

    async def get(self, path: str, timeout_s: float | None = None) -> str:
        """Return the text at a path. Raises as `post` does."""
        async with self._ask("GET", path, None, timeout_s) as answer:
            return (await answer.read()).decode("utf-8", "replace")

    @asynccontextmanager
    async def _ask(
        self, method: str, path: str, data: bytes | None, timeout_s: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that the server does not refuse, for as long as it is read."""
        if self._session is None:
            raise ConnectionLost(f"{self._name} is not connected; it has not been started, or was closed.")
        try:
            async with self._session.request(
                method,
                self._url + path,
                data=data,
                headers={"Content-Type": "application/json"} if data is not None else None,
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S),
            ) as answer:
                if answer.status >= 400:
                    self._refuse(path, answer.status, read_error(await answer.read()) or answer.reason)
                self._answers.add(answer)
                try:
                    yield answer
                finally:
                    self._answers.discard(answer)
        except TimeoutError:
            raise NoAnswer(f"{self._name} did not answer {path} within {timeout_s:g} s.") from None
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            raise ConnectionLost(
                f"{self._name} cannot be reached for {path}: {error or type(error).__name__}."
            ) from None

    def _refuse(self, path: str, status: int, why: str | None) -> NoReturn:
        if status in (502, 503, 504):
            raise ConnectionLost(f"{self._name} does not serve {path}: {why}.")
        raise EngineError(f"{self._name} refused {path} ({status}): {why}.")


def encode(body: Any) -> bytes:
    """Return the shortest JSON of a value."""
    return json.dumps(body, separators=(",", ":")).encode()


def read_error(content: bytes) -> str:
    """Return the message in a server's error, whichever of the usual shapes it has."""
    text = content.decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
    except ValueError:
        return text[:500]
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    return (value if isinstance(value, str) else json.dumps(value))[:500].rstrip(".")
