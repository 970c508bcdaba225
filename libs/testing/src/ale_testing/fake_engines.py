"""These engines give answers that a test chooses; a model session can use one. All of them use the byte tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ale.registry.hooks import Hooks
from ale.session.session import RecordedSession, Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Sampling, Tokenizer

TOKENIZER = byte_tokenizer()
CALL = '<tool_call>\n{"name": "shell", "arguments": {"command":   "ls", "n": 1}}\n</tool_call>'
"""An answer that calls a tool."""


class FakeEngine(Driver, InferenceEngine):
    """An engine without a model."""

    max_context = 1 << 20
    version = 0

    def __init__(self) -> None:
        super().__init__(PluginConfig(), DriverContext())

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """Needs none."""

    async def load_weights(self, policy: PolicyVersion) -> None:
        """Needs none."""


class CannedEngine(FakeEngine):
    """An engine that gives `answers` in turn, then the last one again and again; it raises an answer that is an
    exception."""

    def __init__(self, answers: Sequence[str | Exception]) -> None:
        super().__init__()
        self.answers = answers
        self.calls = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        """The next answer."""
        answer = self.answers[min(self.calls, len(self.answers) - 1)]
        self.calls += 1
        await asyncio.sleep(0)
        if isinstance(answer, Exception):
            raise answer
        ids = tuple([*TOKENIZER.encode(answer), *request.sampling.stop_token_ids[:1]][: request.sampling.max_tokens])
        stopped = bool(ids) and ids[-1] in request.sampling.stop_token_ids
        return Generation(ids, (-0.1,) * len(ids), (0,) * len(ids), "stop" if stopped else "length")


class ScriptedEngine(FakeEngine):
    """Gives the answers of `texts` in turn, and keeps the requests.

    Where a test sets them, it waits for `wait` first, and fails with `error`.
    """

    max_context = 8192
    version = 5

    def __init__(self, texts: Sequence[str] = ()) -> None:
        super().__init__()
        self.texts = list(texts)
        self.requests: list[GenerateRequest] = []
        self.wait: asyncio.Event | None = None
        self.cancelled = 0
        self.error: Exception | None = None

    async def generate(self, request: GenerateRequest) -> Generation:
        """The next answer."""
        self.requests.append(request)
        if self.wait is not None:
            try:
                await self.wait.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.error is not None:
            raise self.error
        ids = (*TOKENIZER.encode(self.texts.pop(0)), *TOKENIZER.stop_token_ids)[: request.sampling.max_tokens]
        stopped = ids[-1] in TOKENIZER.stop_token_ids
        return Generation(ids, (-0.5,) * len(ids), (5,) * len(ids), "stop" if stopped else "length")


class ProgrammableEngine(FakeEngine):
    """Answers `Yes` until a test sets `does`, a function that answers instead."""

    version = 1

    def __init__(self) -> None:
        super().__init__()
        self.does: Callable[[GenerateRequest], Awaitable[Any]] | None = None

    async def generate(self, request: GenerateRequest) -> Any:
        """What `does` returns, which may be no generation at all."""
        if self.does is not None:
            return await self.does(request)
        made, most = whole_answer("Yes"), request.sampling.max_tokens
        if most >= len(made.token_ids):
            return made
        return Generation(made.token_ids[:most], made.logprobs[:most], made.versions[:most], "length")


def whole_answer(text: str) -> Generation:
    """A text as an engine generates it, with its stop token."""
    ids = (*TOKENIZER.encode(text), *TOKENIZER.stop_token_ids)
    return Generation(ids, (-0.1,) * len(ids), (1,) * len(ids), "stop")


@asynccontextmanager
async def session(
    answers: Sequence[str | Exception], *, max_calls: int = 12, max_context: int = 60_000
) -> AsyncIterator[RecordedSession]:
    """A model session whose policy gives these answers."""
    sessions = Sessions(TOKENIZER, CannedEngine(answers), Hooks())
    opened = sessions.open("kit", Sampling(max_tokens=4096), max_calls=max_calls, max_context=max_context)
    try:
        yield opened
    finally:
        opened.close()
