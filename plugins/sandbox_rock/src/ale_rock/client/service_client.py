"""Requests to a service of `ale rock serve`, from the provider `rock` and the commands of `ale rock`.

An error is the caller's fault (`ConfigError`), or a fault of the service, its worker or the sandbox (`SandboxError`).
No answer at all is a fault of the service, too.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp
from yarl import URL

from ale.errors import AleError, ConfigError, SandboxError, TaskError, UncleanError
from ale_sandbox.host.commands import as_bytes

ROCK, ALE = "/apis/envs/sandbox/v1", "/apis/ale/v1"
CONNECT_S, ANSWER_S = 10.0, 60.0
Query = Mapping[str, str] | None
JSON, BYTES = {"Content-Type": "application/json"}, {"Content-Type": "application/octet-stream"}


class Missing(SandboxError):
    """The service has no sandbox of this id, or the sandbox has no such file; `what` is the answer's `kind`."""

    def __init__(self, message: str, what: str = "") -> None:
        super().__init__(message)
        self.what = what


class ServiceClient:
    """A client of one service. It opens its connections at first use; `close` ends them."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.url = url.rstrip("/")
        self._headers = dict(headers)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """End the connections. It is idempotent, and the next request opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            # There is no limit of connections, because commands that run at once would wait for each other.
            self._session = aiohttp.ClientSession(headers=self._headers, connector=aiohttp.TCPConnector(limit=0))
        return self._session

    async def rock(
        self, method: str, path: str, body: object = None, answer_s: float = ANSWER_S, query: Query = None
    ) -> Any:
        """Send a request of ROCK's API and return the `result` of its envelope. Raises `ConfigError` or
        `SandboxError`."""
        envelope = await self.json(method, ROCK + path, body, answer_s, query)
        if envelope.get("status") == "Success":
            return envelope.get("result")
        result = envelope.get("result") or {}
        sentence = str(envelope.get("error") or envelope.get("message") or result.get("failure_reason") or envelope)
        raise (ConfigError if 4000 <= int(result.get("code") or 0) < 5000 else SandboxError)(sentence)

    async def json(
        self, method: str, path: str, body: object = None, answer_s: float = ANSWER_S, query: Query = None
    ) -> Any:
        """Send a request whose body, if any, and whose answer are JSON."""
        data = None if body is None else json.dumps(body).encode()
        async with self.request(method, path, data, answer_s, query, JSON) as response:
            text = await response.read()
        try:
            return json.loads(text)
        except ValueError:
            raise SandboxError(f"The ROCK service at {self.url} answered with something else than JSON.") from None

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        data: bytes | AsyncIterator[bytes] | None = None,
        answer_s: float | None = ANSWER_S,
        query: Query = None,
        headers: Mapping[str, str] = BYTES,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield the response of a success. An error that the caller raises while it reads
        the response is not changed.

        `answer_s` bounds the wait for each piece of the response; None: nothing does. `headers` are those of a request
        with data.
        """
        # A path in a sandbox may be bytes that are no UTF-8.
        asked = f"?{urlencode({name: as_bytes(value) for name, value in query.items()})}" if query else ""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=answer_s)
        kind = {} if data is None else headers
        url = URL(f"{self.url}{path}{asked}", encoded=True)
        own: Exception | None = None
        try:
            async with self._connected().request(method, url, data=data, headers=kind, timeout=limits) as response:
                if response.status >= 400:
                    raise read_error(self.url, response.status, await response.read())
                try:
                    yield response
                except Exception as error:
                    own = None if isinstance(error, aiohttp.ClientError) else error
                    raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if error is own:
                raise
            reason = str(error) or type(error).__name__
            if isinstance(getattr(error, "os_error", None), ConnectionRefusedError):
                reason = "nothing listens there"
            raise SandboxError(f"The ROCK service at {self.url} does not answer: {reason}.") from None

    @asynccontextmanager
    async def websocket(self, path: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket. Raises `SandboxError` if the service does not take it."""
        try:
            socket = await self._connected().ws_connect(URL(self.url + path, encoded=True), max_msg_size=0)
        except aiohttp.WSServerHandshakeError as error:
            why = "nothing listens there" if error.status == 502 else f"HTTP {error.status}"
            raise SandboxError(f"The ROCK service at {self.url} does not open {path}: {why}.") from None
        except (aiohttp.ClientError, OSError) as error:
            raise SandboxError(f"The ROCK service at {self.url} does not answer: {error}.") from None
        async with socket:
            yield socket


def check_url(url: str) -> str:
    """Return the URL of a service or a worker, if it is valid. Raises `ConfigError`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is no URL; write http://HOST:PORT, as `ale rock serve` prints it.")
    return url


def read_error(url: str, status: int, body: bytes) -> AleError:
    """Return the error that an answer stands for."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = {}
    answer = answer if isinstance(answer, dict) else {}
    if answer == {"detail": "Not Found"}:  # the answer to a path that no route has
        return ConfigError(f"There is no ROCK service at {url}, but something else: write the URL without a path.")
    sentence = str(answer.get("detail") or f"The ROCK service at {url} answered with the HTTP status {status}.")
    if "unclean" in answer:
        return UncleanError(sentence, str(answer["unclean"]))
    if "is_task" in answer:
        return TaskError(sentence)
    if status in (401, 403):
        return ConfigError(f"The ROCK service at {url} refuses this user: {sentence}")
    if status == 404 or "kind" in answer:
        return Missing(sentence, str(answer.get("kind", "")))
    return ConfigError(sentence) if status == 422 or answer.get("fault") == "caller" else SandboxError(sentence)
