"""Serving without an engine: each call is answered from a recording or by an upstream, and recorded.

1. Calls with the same key are one session, whose name is a hash of the key; calls without one are `anonymous`.
   Where a key is required, `KEY` and `KEY:NAME` are good for any NAME, so that one secret opens a session for each
   episode.
2. An answer is in the recording before it goes out, and a failed call is there with its error, also a request that
   cannot be read. A call that its agent gave up is not.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ale.errors import AleError
from ale.messages import Answer, ChatReply, ModelCall
from ale.specs.engine import MessageEngine
from ale_endpoint.dialects.fields import Server
from ale_endpoint.dialects.pictures import Pictures
from ale_endpoint.recording import RecordedCall, Recording
from ale_endpoint.replay import Replay

log = logging.getLogger("ale.endpoint")
ANONYMOUS = "anonymous"
CHARS_A_TOKEN = 4
SENT_BYTES = 20_000
"""How much of a request that cannot be read is recorded."""


class Forwarding:
    """Sessions by their keys, over a recording to replay, a source, or both; `recording` is written where there is one.

    `record_replayed` is false where the recording that is written is the one that is replayed.
    """

    def __init__(
        self,
        source: MessageEngine | None,
        replay: Replay | None = None,
        recording: Recording | None = None,
        *,
        models: Sequence[str] = (),
        required_key: str | None = None,
        record_replayed: bool = True,
        pictures: Pictures = "pass_on",
        max_tokens: int | None = None,
    ) -> None:
        self.models = tuple(models)
        self.pictures = pictures
        self.server: Server = "upstream"
        self.max_tokens = max_tokens
        """The most tokens of an answer, whatever an agent asks for; None: any number."""
        self.counts: Counter[str] = Counter()
        """Calls that were `answered` by the source, `replayed`, `failed`, or `refused` because they cannot be read."""
        self._source = source
        self._replay = replay
        self._recording = recording
        self._required = required_key
        self._record_replayed = record_replayed
        self._sessions: dict[str, ForwardingSession] = {}

    def by_key(self, key: str) -> ForwardingSession | None:
        """Find the session of a key, or make it when the key is new; None where another key is required."""
        if self._required is not None:
            given = key if len(key) <= len(self._required) else key[: len(self._required)]
            if not hmac.compare_digest(given.encode("utf-8", "replace"), self._required.encode()):
                return None
            if key != given and key[len(given)] != ":":
                return None
        name = _session_name(key)
        if name not in self._sessions:
            calls = self._recording.calls[name] if self._recording is not None else 0
            self._sessions[name] = ForwardingSession(self, name, calls)
        return self._sessions[name]

    def note_refusal(self, key: str, sent: bytes, refusal: AleError) -> None:
        """Record a request that cannot be read, with the beginning of what was sent, and report it."""
        session = self.by_key(key)
        if session is None:
            return
        number, session.calls = session.calls, session.calls + 1
        self.counts["refused"] += 1
        log.warning("session %s, call %s: a request was refused: %s", session.id, number, refusal)
        if self._recording is not None:
            request = ModelCall((), ignored={"sent": sent[:SENT_BYTES].decode("utf-8", "replace")})
            self._recording.add(
                RecordedCall(
                    session=session.id,
                    number=number,
                    time=time.time(),
                    seconds=0.0,
                    request=request,
                    answer=None,
                    error=str(refusal),
                )
            )

    async def answer(self, session: str, number: int, call: ModelCall) -> Answer:
        """Answer a session's call and record it. Raises `AleError`."""
        began, clock = time.time(), time.monotonic()
        error = None
        answer = self._replay.answer(call) if self._replay is not None else None
        replayed = answer is not None
        try:
            if answer is None and self._source is not None:
                answer = await self._source.answer(call)
            if answer is None:
                assert self._replay is not None, "there is a source or a recording"
                raise self._replay.refusal(call)
        except AleError as fault:
            self.counts["failed"] += 1
            log.warning("session %s, call %s: %s", session, number, fault)
            error = fault
        if self._recording is not None and (self._record_replayed or not replayed):
            seconds = time.monotonic() - clock
            self._recording.add(
                RecordedCall(
                    session=session,
                    number=number,
                    time=began,
                    seconds=seconds,
                    request=call,
                    answer=answer,
                    error=None if error is None else str(error),
                )
            )
        if error is not None:
            raise error
        assert answer is not None
        self.counts["replayed" if replayed else "answered"] += 1
        return answer


class ForwardingSession:
    """The session of one key."""

    def __init__(self, forwarding: Forwarding, session_id: str, calls: int) -> None:
        self.id = session_id
        self.calls = calls
        """How many answers were asked for so far."""
        self.fault: AleError | None = None
        self._forwarding = forwarding

    async def answer(self, request: ModelCall) -> list[ChatReply]:
        """The replies to a call, numbered through the session. Raises `AleError`."""
        first, self.calls = self.calls, self.calls + request.n
        longest = self._forwarding.max_tokens
        if longest is not None:
            request = replace(request, max_tokens=min(request.max_tokens or longest, longest))
        answer = await self._forwarding.answer(self.id, first, request)
        return [replace(reply, chunk=first + i) for i, reply in enumerate(answer.replies)]

    def count_tokens(self, request: ModelCall) -> int:
        """Estimate the tokens: the tokenizer of the upstream's model is not known."""
        content = [*(m.to_openai() for m in request.messages), *(t.to_openai() for t in request.tools)]
        return len(json.dumps(content, ensure_ascii=False)) // CHARS_A_TOKEN + 1


def _session_name(key: str) -> str:
    if not key:
        return ANONYMOUS
    return "s-" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:16]
