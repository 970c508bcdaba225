"""The policy as the endpoint's HTTP server asks for it: sessions by key, and counts of what was answered.

A client names itself with its key: without a required key any will do, with one `KEY` and `KEY:NAME` are good, where
each NAME is a client of its own. Clients share nothing but the engine."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ale.errors import AleError, RequestRefused
from ale.messages import ChatReply, ModelCall
from ale.session.partial_replies import Progress
from ale.specs.engine import Sampling
from ale_endpoint.dialects.fields import Server
from ale_endpoint.dialects.pictures import Pictures
from ale_endpoint.serving.conversations import Conversations

log = logging.getLogger("ale.serving")
ANONYMOUS = "anonymous"
OUTCOMES = ("answered", "failed", "refused", "cancelled")
"""A call has an answer, the engine failed, it cannot be answered as it was sent, or its client or the server left."""
HOTTEST = 2.0
"""The highest temperature that a client may ask for, as in OpenAI's API."""


class ServedPolicy:
    """A policy behind the endpoint, under the names `models`; clients must give `required_key`, or a key of it."""

    pictures: Pictures = "refuse"
    server: Server = "session"

    def __init__(
        self, conversations: Conversations, sampling: Sampling, models: Sequence[str], required_key: str | None = None
    ) -> None:
        self.conversations = conversations
        self.sampling = sampling
        """How calls are sampled that do not say so themselves."""
        self.models = tuple(models)
        self.counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        """Calls by their outcome."""
        self.running = 0
        """The number of calls that are being answered."""
        self._required = required_key
        self._numbers = 0
        self.boot = secrets.token_hex(4)

    def lets_in(self, key: str) -> bool:
        """Return whether a key is good; the time that this takes reveals nothing about the required one."""
        if self._required is None:
            return True
        given = key[: len(self._required)]
        same = hmac.compare_digest(given.encode("utf-8", "replace"), self._required.encode())
        return same and (key == given or key[len(given)] == ":")

    def by_key(self, key: str) -> ServedClient | None:
        """Return the session of the client with this key; None if another key is required."""
        return ServedClient(self, client_name(key)) if self.lets_in(key) else None

    def note_refusal(self, key: str, sent: bytes, refusal: AleError) -> None:
        """Count a request that cannot be read, unless a stranger sent it."""
        self.counts["refused"] += self.lets_in(key)

    def take_numbers(self, n: int) -> int:
        """Return the first of `n` numbers for answers, which no other answer has."""
        first, self._numbers = self._numbers, self._numbers + n
        return first


class ServedClient:
    """The session of one client, over all of its conversations."""

    def __init__(self, policy: ServedPolicy, name: str) -> None:
        self.id = f"{policy.boot}-{name}"
        """The name in the ids of answers, which no answer of an earlier start of the server has."""
        self.fault: AleError | None = None
        self._name = name
        self._policy = policy

    async def answer(self, call: ModelCall, progress: Progress | None = None) -> list[ChatReply]:
        """Answer a call in its conversation; `progress` gets the pieces of replies as they come. Raises `AleError`."""
        policy = self._policy
        policy.running += 1
        try:
            sampling = sampling_of(call, policy.sampling)
            with policy.conversations.of(self._name, call, sampling) as conversation:
                replies = await conversation.session.answer(call, progress)
                policy.conversations.note(conversation, replies)
        except AleError as error:
            policy.counts["failed" if error.retryable else "refused"] += 1
            if error.retryable:
                log.warning("client %s: %s", self._name, error)
            raise
        except asyncio.CancelledError:
            policy.counts["cancelled"] += 1
            raise
        finally:
            policy.running -= 1
        policy.counts["answered"] += 1
        first = policy.take_numbers(len(replies))
        return [replace(reply, chunk=first + i) for i, reply in enumerate(replies)]

    def take_call_id(self) -> str:
        """Return an id for an answer that is streamed before it is complete."""
        return f"{self.id}-{self._policy.take_numbers(1)}"

    def count_tokens(self, call: ModelCall) -> int:
        """Count the tokens of a call's prompt."""
        with self._policy.conversations.of(self._name, call, self._policy.sampling) as conversation:
            return conversation.session.count_tokens(call)


def client_name(key: str) -> str:
    """Return the name of the client with a key, in which the key cannot be read."""
    return "c-" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:16] if key else ANONYMOUS


def sampling_of(call: ModelCall, default: Sampling) -> Sampling:
    """Return how to sample a call: as it asks (`temperature`, `top_p`, `top_k`), else by default. Raises
    `RequestRefused`."""
    return sampling_of_fields(call.ignored, default)


def sampling_of_fields(asked: Mapping[str, object], default: Sampling) -> Sampling:
    """Return how to sample by the fields of a request. Raises `RequestRefused`."""
    temperature = _number(asked.get("temperature"), default.temperature, "temperature", 0, HOTTEST)
    top_p = _number(asked.get("top_p"), default.top_p, "top_p", 0, 1)
    top_k = _number(asked.get("top_k"), default.top_k, "top_k", 0, 1 << 31)
    if top_p == 0:
        raise RequestRefused("'top_p' must be above 0; a temperature of 0 takes the most likely token.")
    if top_k != int(top_k):
        raise RequestRefused(f"'top_k' must be a whole number, not {top_k}.")
    return replace(default, temperature=temperature, top_p=top_p, top_k=int(top_k))


def _number(asked: object, default: float, name: str, low: float, high: float) -> float:
    if asked is None:
        return default
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not low <= asked <= high or math.isnan(asked):
        raise RequestRefused(f"'{name}' must be a number from {low:g} to {high:g}, not {asked!r:.60}.")
    return float(asked)
