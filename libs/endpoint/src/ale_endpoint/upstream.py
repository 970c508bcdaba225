"""Forwards calls as OpenAI chat completions to other servers, each to the URL that its model's name leads to.

1. A `Route` leads from names of models (a pattern) to a URL; the first that matches is taken.
2. Temporary failures (no connection, 408, 425, 429, 5xx, unreadable answers) are tried again after growing waits,
   half of each random, so that all together are never shorter than `FIRST_WAIT_S` * 15.5 (7.75 s); `Retry-After` is
   obeyed where it is no longer than `PATIENCE_S`.
3. Other failures are sorted by whose fault they are: a refused key is the operator's (`ConfigError`), a request
   that the model cannot serve is the agent's (`RequestRefused`, `ContextExceeded`). No error holds a key.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from typing import Any, NoReturn, Self
from urllib.parse import urlsplit

import aiohttp
import tenacity

from ale.errors import ApiError, ConfigError, ContextExceeded, RequestRefused
from ale.messages import Answer, ChatReply, ModelCall, read_json
from ale.registry.validation import one_line_error
from ale_endpoint.chat_client import read_replies, request_body, whole
from ale_endpoint.dialects.request_errors import kind_of
from ale_endpoint.http_client import CONNECT_S, open_client, proxy_for

ATTEMPTS = 6
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
PATIENCE_S = 120.0
"""The longest `Retry-After` that is waited for."""
SHORTEST_KEY = 8
"""Shorter keys are not redacted: local servers take any word for a key, such as `EMPTY`."""
LONGEST = ("max_tokens", "max_completion_tokens")
"""Names of the limit of a reply: newer models of OpenAI refuse the first, which every other server knows."""
TOO_LONG = re.compile(
    r"context.?(length|window|size)|maximum context|prompt is too long|too many (input )?tokens", re.IGNORECASE
)


Completion = tuple[list[ChatReply], Mapping[str, Any]]
"""Replies, and the usage."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where the calls of the models whose names fit `pattern` go."""

    url: str
    """Of the API, such as `https://host/v1`."""
    pattern: str = "*"
    model: str | None = None
    """The model's name there; None: as it was asked for."""
    key: str | None = field(default=None, repr=False)
    key_from: str = ""
    """Where the key comes from, for people."""

    def __post_init__(self) -> None:
        """Raises `ConfigError` for what is no URL of an API, or no key."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"The upstream '{self.url}' must be a URL such as https://host/v1.")
        if parts.username is not None or parts.password is not None:
            raise ConfigError(
                f"The upstream at {parts.hostname} has a user or a password in its URL, which would be printed and "
                "recorded; "
                "leave them out, and name the environment variable that holds the key."
            )
        if parts.query or parts.fragment:
            raise ConfigError(f"The upstream '{self.url}' must be a URL without '?' and '#', such as https://host/v1.")
        if self.key is not None and not re.fullmatch(r"[!#-\[\]-~]+", self.key):
            raise ConfigError(
                f"The key from {self.key_from} must be printable ASCII without spaces, quotes and backslashes, and not "
                "empty."
            )

    @property
    def there(self) -> str:
        """Where requests are sent."""
        base = self.url.rstrip("/")
        return base if base.endswith("/chat/completions") else f"{base}/chat/completions"


class TryAgain(Exception):
    """A temporary failure; `wait_s` is the wait that the upstream asks for."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Upstream:
    """Forwards calls while its context lasts. `parameters` go into every request, whatever the agent asks for."""

    def __init__(
        self,
        routes: Sequence[Route],
        *,
        parameters: Mapping[str, Any] | None = None,
        timeout_s: float = 600.0,
        attempts: int = ATTEMPTS,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self.routes = tuple(routes)
        self._parameters = dict(parameters or {})
        self._timeout_s = timeout_s
        self._attempts = attempts
        half = {"multiplier": first_wait_s / 2, "max": LONGEST_WAIT_S / 2}
        self._least_wait = tenacity.wait_exponential(**half)
        self._more_wait = tenacity.wait_random_exponential(**half)
        self._completion_tokens: set[tuple[str, str]] = set()
        """URLs and models that take `max_completion_tokens` and not `max_tokens`."""

    async def __aenter__(self) -> Self:
        self._proxies = {route.url: proxy_for(route.url) for route in self.routes}
        self._http = open_client()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.close()

    def redact(self, text: str) -> str:
        """The text without the keys."""
        for route in self.routes:
            if route.key is not None:
                text = without_key(text, route.key, route.key_from)
        return text

    def route(self, model: str) -> Route:
        """Where calls for a model go. Raises `RequestRefused`."""
        for route in self.routes:
            if fnmatchcase(model, route.pattern):
                return route
        known = ", ".join(route.pattern for route in self.routes)
        raise RequestRefused(f"No route leads to a model '{model}'; there are {known}.", 404, "model_not_found")

    async def answer(self, call: ModelCall) -> Answer:
        """Forward a call. Raises `ApiError` (temporary), `RequestRefused`, `ContextExceeded`, `ConfigError`."""
        route = self.route(call.model)
        made: list[ChatReply] = []
        usage: dict[str, Any] = {}
        while len(made) < call.n:  # many servers make one answer, however many are asked for
            replies, used = await self._ask(route, call, call.n - len(made))
            made += replies
            usage = _sum(usage, used)
        return Answer(tuple(made[: call.n]), route.url, usage)

    async def _ask(self, route: Route, call: ModelCall, n: int) -> Completion:
        def body() -> dict[str, Any]:
            model = route.model or call.model
            longest = LONGEST[(route.url, model) in self._completion_tokens]
            named = {longest if name in LONGEST else name: value for name, value in self._parameters.items()}
            return {**request_body(call, model, n, longest), **named}

        async def attempt() -> Completion:
            sent = body()
            try:
                return await self._post(route, call, sent)
            except RequestRefused as error:
                if LONGEST[1] not in str(error) or LONGEST[0] not in sent:
                    raise
                self._completion_tokens.add((route.url, sent["model"]))
                return await self._post(route, call, body())

        trying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(TryAgain),
            stop=tenacity.stop_after_attempt(self._attempts),
            wait=self._wait,
            reraise=True,
        )
        try:
            return await trying(attempt)
        except TryAgain as fault:
            raise ApiError(f"{fault} It was tried {self._attempts} times.") from None

    def _wait(self, state: tenacity.RetryCallState) -> float:
        fault = state.outcome.exception() if state.outcome is not None else None
        asked = fault.wait_s if isinstance(fault, TryAgain) else None
        least, more = float(self._least_wait(state)), float(self._more_wait(state))
        return least + more if asked is None else max(asked, least) + min(1.0, more)

    async def _post(self, route: Route, call: ModelCall, body: Mapping[str, Any]) -> Completion:
        """Try once. Raises `TryAgain` for temporary failures, and others as `answer` does."""
        headers = {"content-type": "application/json"}
        if route.key is not None:
            headers["authorization"] = f"Bearer {route.key}"
        where = f"The upstream {route.url}"
        try:
            sent = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:
            raise RequestRefused("The request holds half a character (a surrogate), which no text can carry.") from None
        except ValueError:
            raise RequestRefused("The request holds a number that is not finite, which JSON does not have.") from None
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._http.post(
                    route.there, data=sent, headers=headers, proxy=self._proxies[route.url], allow_redirects=False
                ) as response,
            ):
                content = await response.read()
        except aiohttp.ServerTimeoutError:
            raise TryAgain(f"{where} cannot be reached: it took no connection within {CONNECT_S:g} s.") from None
        except TimeoutError:
            raise TryAgain(f"{where} did not answer within {self._timeout_s:g} s.") from None
        except aiohttp.ClientError as error:
            raise TryAgain(f"{where} cannot be reached: {one_line_error(error)}.") from None
        text = content.decode("utf-8", "replace")
        try:
            data = read_json(text)
        except (ValueError, RecursionError):
            data = None
        fault = data.get("error") if isinstance(data, dict) else None
        if response.status == 200 and not fault:
            try:
                replies = read_replies(data, call)
                return replies, data["usage"] if isinstance(data.get("usage"), dict) else {}
            except ValueError as error:
                fault_text = f"{one_line_error(error)}: {self.redact(text)[:100]!r}"
                raise TryAgain(f"{where} answered with something that is no chat completion, {fault_text}.") from None
        status = response.status
        if status == 200:  # some gateways report failures this way
            code = fault.get("code") if isinstance(fault, dict) else None
            status = code if isinstance(code, int) and 400 <= code < 600 else 502
        self._fail(route, status, fault, text, response.headers.get("retry-after"))

    def _fail(self, route: Route, status: int, error: Any, text: str, retry_after: str | None) -> NoReturn:
        where = f"The upstream {route.url}"
        message = self.redact(_error_message(error, text))
        code = str(error.get("code") or error.get("type") or "") if isinstance(error, dict) else ""
        if status in (401, 403):  # what it says may hold part of the key
            given = f"the key from {route.key_from}" if route.key is not None else "calls without a key"
            raise ConfigError(f"{where} refuses {given} ({status}); see that it is the right one for this server.")
        if status == 402 or code == "insufficient_quota":
            raise ConfigError(f"{where} wants to be paid before it answers more ({status}): {message}.")
        if status in (408, 425, 429) or status >= 500:
            wait_s = retry_after_s(retry_after)
            if wait_s is not None and wait_s > PATIENCE_S:
                raise ApiError(f"{where} answers {status} and asks to come back in {wait_s:.0f} s: {message}.")
            raise TryAgain(f"{where} answers {status}: {message}.", wait_s)
        if status in (400, 413, 422) and (code == "context_length_exceeded" or TOO_LONG.search(message)):
            raise ContextExceeded(f"{where} has no room for a conversation of this length: {message}.")
        if 400 <= status < 500 and status != 405 and (status != 404 or isinstance(error, dict)):
            refusal = f"{where} refuses the request ({status}): {message}."
            raise RequestRefused(refusal, status, code or "invalid_request")
        raise ConfigError(
            f"{where} serves no chat completions at {route.there} (it answers {status}); many URLs end in /v1."
        )


def _sum(before: Mapping[str, Any], usage: Mapping[str, Any]) -> dict[str, Any]:
    """Add up two usages."""
    return {**usage, **{k: v + whole(usage.get(k)) for k, v in before.items() if isinstance(v, int)}}


def without_key(text: str, key: str, name: str) -> str:
    """Replace a key in a text by its name; short words that stand for no key, such as `EMPTY`, stay."""
    return text.replace(key, f"[{name}]") if len(key) >= SHORTEST_KEY else text


def _error_message(error: Any, text: str) -> str:
    """What an error's answer says, as part of a sentence."""
    for message in (error.get("message") if isinstance(error, dict) else error, text):
        if isinstance(message, str) and message.strip():
            return one_line_error(message)[:500]
    return f"it says no more{'' if error is None else f' than {kind_of(error)}'}"


def retry_after_s(value: str | None) -> float | None:
    """Seconds that a `Retry-After` asks for, a number or a date; None where it says nothing that can be read."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
