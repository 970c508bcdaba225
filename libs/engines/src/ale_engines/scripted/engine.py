"""An engine without a model: its answers come from a list, a recording or a function, or are random tokens.

Use it to debug a scaffold, for tests, and to try your own task: `ale run FILE --only rollout`. Text goes through
the run's tokenizer like a model's would; its log-probabilities are 0 (certain), in `random` mode log(1/V).
"""

from __future__ import annotations

import asyncio
import inspect
import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from ale.errors import EngineError
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Tokenizer
from ale_engines.scripted.answer_sources import ScriptedCall, load_function, read_recording


class ScriptedEngine(Driver, InferenceEngine):
    """Answers without a model: from a list, a function or a recording, or random tokens."""

    api_version = ">=1.0,<1.2"

    class Config(PluginConfig):
        """Settings of the engine `scripted`; give exactly one of answers, function, recording and random."""

        answers: tuple[str, ...] | None = Field(
            default=None, min_length=1, description="The answers, one for each call of a session; the last is repeated."
        )
        end: str | None = Field(
            default=None,
            description="The answer after the end of `answers` or of the recorded conversation; null: the last one.",
        )
        function: str | None = Field(
            default=None,
            description="`package.module:name` or `path/to/file.py:name`: a function (plain or async) from a "
            "ScriptedCall to a text.",
        )
        recording: Path | None = Field(
            default=None,
            description=(
                "JSONL (a conversation per line) or JSON file (a list of conversations, or an object session -> "
                "conversation); a conversation is a list of assistant texts. From a list, the first session gets the "
                "first conversation, the second the next, and so on."
            ),
        )
        random: bool = Field(
            default=False, description="Random tokens, to test that nothing breaks on invalid replies."
        )
        random_tokens: int = Field(default=40, gt=0, description="Maximum number of tokens in a random answer.")
        latency_s: float = Field(default=0.0, ge=0, description="Seconds that every answer takes.")
        max_context: int = Field(default=32768, gt=0, description="Maximum number of tokens in one context.")

        @model_validator(mode="after")
        def _exactly_one(self) -> ScriptedEngine.Config:
            sources = [n for n in ("answers", "function", "recording") if getattr(self, n) is not None]
            sources += ["random"] if self.random else []
            if len(sources) != 1:
                found = f"not {' and '.join(sources)}" if sources else "none is given"
                raise ValueError(f"give exactly one of answers, function, recording and random; {found}")
            if self.end is not None and self.answers is None and self.recording is None:
                raise ValueError("end can be set only with answers or recording")
            return self

    config: Config

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self._tokenizer: Tokenizer | None = None
        self._version = 0
        self._running = asyncio.Event()
        self._running.set()
        self._recording = read_recording(config.recording) if config.recording else []
        self._function = load_function(config.function) if config.function else None
        self._conversation_numbers: dict[str, int] = {}
        self._requests = self._prompt_tokens = self._sampled = 0
        self._busy_s = self._busy_since = 0.0
        self._answering = 0

    @property
    def max_context(self) -> int:
        """Most tokens of one request."""
        return self.config.max_context

    @property
    def version(self) -> int:
        """The last version that was loaded; answers do not depend on it."""
        return self._version

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """Take the tokenizer; the model folder is ignored."""
        self._tokenizer = tokenizer

    async def load_weights(self, policy: PolicyVersion) -> None:
        """Note the version."""
        self._version = policy.version

    async def pause(self) -> None:
        """Make requests wait."""
        self._running.clear()

    async def resume(self) -> None:
        """Let requests continue."""
        self._running.set()

    async def generate(self, request: GenerateRequest) -> Generation:
        """The next answer of the session, cut at `max_tokens` as a model's would be."""
        await self._running.wait()
        self._open_tokenizer()
        room = self.config.max_context - len(request.token_ids)
        if room < 1:
            raise EngineError(
                f"A prompt of {len(request.token_ids)} tokens cannot be answered in a context of "
                f"{self.config.max_context}. Raise engine.max_context, or let the agent shorten its context sooner."
            )
        with self._busy():
            if self.config.latency_s:
                await asyncio.sleep(self.config.latency_s)
            await self._running.wait()
            tokenizer = self._open_tokenizer()
            if self.config.random:
                ids, logprob = self._random_tokens(request, tokenizer), -math.log(tokenizer.vocab_size)
            else:
                stop = request.sampling.stop_token_ids or tokenizer.stop_token_ids
                ids, logprob = [*tokenizer.encode(await self._next_text(request, tokenizer)), *stop[:1]], 0.0
        limit = min(request.sampling.max_tokens, room)
        cut, ids = len(ids) > limit, ids[:limit]
        self._requests += 1
        self._prompt_tokens += len(request.token_ids)
        self._sampled += len(ids)
        return Generation(tuple(ids), (logprob,) * len(ids), (self._version,) * len(ids), "length" if cut else "stop")

    def _open_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise EngineError("The engine 'scripted' has no tokenizer: it is closed, or load_model was not called.")
        return self._tokenizer

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Count the seconds in which any request is answered; requests at the same time count once."""
        if self._answering == 0:
            self._busy_since = time.perf_counter()
        self._answering += 1
        try:
            yield
        finally:
            self._answering -= 1
            if self._answering == 0:
                self._busy_s += time.perf_counter() - self._busy_since

    def _random_tokens(self, request: GenerateRequest, tokenizer: Tokenizer) -> list[int]:
        seed = request.sampling.seed
        rng = random.Random(f"{self.context.seed}/{request.session}/{request.call}" if seed is None else seed)
        stop = request.sampling.stop_token_ids or tokenizer.stop_token_ids
        n = rng.randrange(self.config.random_tokens)
        plain = [t for t in range(tokenizer.vocab_size) if t not in stop]
        return [*rng.choices(plain, k=n), *stop[:1]]

    async def _next_text(self, request: GenerateRequest, tokenizer: Tokenizer) -> str:
        if self._function is not None:
            call = ScriptedCall(request.session, request.call, tokenizer.decode(list(request.token_ids)))
            try:
                answer = self._function(call)
                answer = await answer if inspect.isawaitable(answer) else answer
            except Exception as error:
                raise EngineError(f"engine.function raised {type(error).__name__}: {error}") from error
            if not isinstance(answer, str):
                raise EngineError(f"engine.function must return a text, not {type(answer).__name__}.")
            return answer
        texts = self.config.answers or self._conversation_of(request.session)
        if request.call >= len(texts) and self.config.end is not None:
            return self.config.end
        return texts[min(request.call, len(texts) - 1)]

    def _conversation_of(self, session: str) -> tuple[str, ...]:
        if isinstance(self._recording, dict):
            if session not in self._recording:
                raise EngineError(f"engine.recording: {self.config.recording} has no conversation '{session}'.")
            return self._recording[session]
        index = self._conversation_numbers.setdefault(session, len(self._conversation_numbers))
        return self._recording[index % len(self._recording)]

    async def close(self) -> None:
        """Stop answering; waiting requests get an error."""
        self._tokenizer = None
        self._running.set()

    def metrics(self) -> dict[str, float]:
        """Counters since the start. `slot_use` is 1: an engine without slots wastes none."""
        return {
            "requests": float(self._requests),
            "prompt_tokens": float(self._prompt_tokens),
            "sampled_tokens": float(self._sampled),
            "busy_s": self._busy_s,
            "slot_use": 1.0,
        }
