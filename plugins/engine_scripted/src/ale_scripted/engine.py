"""An engine without a model: what it "samples" is written down, computed by a function, or noise.

For debugging a scaffold, for tests, and to try a task of one's own: `ale run FILE --only rollout`. Text goes through
the run's tokenizer like a model's would; its log-probabilities are 0 (certain), in `random` mode log(1/V).
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from ale.errors import ConfigError, EngineError
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Tokenizer


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """What a function is told: the session, which of its calls this is (from 0), and the prompt as text."""

    session: str
    call: int
    prompt: str


class ScriptedEngine(InferenceEngine):
    """The engine `scripted`."""

    class Config(PluginConfig):
        """Settings of the engine `scripted`; give exactly one of answers, function, recording and random."""

        answers: tuple[str, ...] | None = Field(
            default=None, min_length=1, description="Texts, one a call of a session; the last one is repeated."
        )
        function: str | None = Field(
            default=None,
            description="`package.module:name` or `path/to/file.py:name`: a function (plain or async) from a ScriptedCall to a text.",
        )
        recording: Path | None = Field(
            default=None,
            description="JSONL file, a conversation a line: a list of assistant texts; sessions take them in turn.",
        )
        random: bool = Field(default=False, description="Random tokens: shows that nothing breaks on nonsense.")
        random_tokens: int = Field(default=40, gt=0, description="Most tokens of a random answer.")
        latency_s: float = Field(default=0.0, ge=0, description="Seconds that every answer takes.")
        max_context: int = Field(default=32768, gt=0, description="Tokens of one context.")

        @model_validator(mode="after")
        def _exactly_one(self) -> ScriptedEngine.Config:
            given = [n for n in ("answers", "function", "recording") if getattr(self, n) is not None]
            given += ["random"] if self.random else []
            if len(given) != 1:
                found = f"not {' and '.join(given)}" if given else "none is given"
                raise ValueError(f"give exactly one of answers, function, recording and random; {found}")
            return self

    config: Config

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self._tokenizer: Tokenizer | None = None
        self._version = 0
        self._conversations = _read_recording(config.recording) if config.recording else []
        self._function = _load_function(config.function) if config.function else None
        self._turn: dict[str, int] = {}
        self._sampled = 0

    @property
    def max_context(self) -> int:
        """Most tokens of one request."""
        return self.config.max_context

    @property
    def version(self) -> int:
        """The last version that was loaded; it changes nothing."""
        return self._version

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """Take the tokenizer; a model folder is not looked at."""
        self._tokenizer = tokenizer

    async def load_weights(self, policy: PolicyVersion) -> None:
        """Note the version."""
        self._version = policy.version

    async def generate(self, request: GenerateRequest) -> Generation:
        """The next answer of the session, cut at `max_tokens` as a model's would be."""
        if self._tokenizer is None:
            raise EngineError("The engine 'scripted' has no tokenizer yet.")
        if self.config.latency_s:
            await asyncio.sleep(self.config.latency_s)
        if self.config.random:
            ids, logprob = self._noise(request), -math.log(self._tokenizer.vocab_size)
        else:
            stop = request.sampling.stop_token_ids or self._tokenizer.stop_token_ids
            ids, logprob = [*self._tokenizer.encode(await self._text(request)), *stop[:1]], 0.0
        cut = len(ids) > request.sampling.max_tokens
        ids = ids[: request.sampling.max_tokens]
        self._sampled += len(ids)
        return Generation(
            tuple(ids), (logprob,) * len(ids), (self._version,) * len(ids), "length" if cut else "stop"
        )  # fmt: skip

    def _noise(self, request: GenerateRequest) -> list[int]:
        assert self._tokenizer is not None
        seed = request.sampling.seed
        rng = random.Random(f"{self.context.seed}/{request.session}/{request.call}" if seed is None else seed)
        stop = request.sampling.stop_token_ids or self._tokenizer.stop_token_ids
        n = rng.randrange(self.config.random_tokens)
        plain = [t for t in range(self._tokenizer.vocab_size) if t not in stop]
        return [*rng.choices(plain, k=n), *stop[:1]]

    async def _text(self, request: GenerateRequest) -> str:
        if self._function is not None:
            assert self._tokenizer is not None
            call = ScriptedCall(request.session, request.call, self._tokenizer.decode(list(request.token_ids)))
            try:
                answer = self._function(call)
                answer = await answer if inspect.isawaitable(answer) else answer
            except Exception as error:
                raise EngineError(f"engine.function raised {type(error).__name__}: {error}") from error
            if not isinstance(answer, str):
                raise EngineError(f"engine.function must return a text, not {type(answer).__name__}.")
            return answer
        texts = self.config.answers or self._conversation(request.session)
        return texts[min(request.call, len(texts) - 1)]

    def _conversation(self, session: str) -> tuple[str, ...]:
        index = self._turn.setdefault(session, len(self._turn))
        return self._conversations[index % len(self._conversations)]

    def metrics(self) -> dict[str, float]:
        """Sampled tokens."""
        return {"sampled_tokens": float(self._sampled)}


def _read_recording(path: Path) -> list[tuple[str, ...]]:
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"engine.recording: {path} cannot be read: {error}.") from error
    if not rows or not all(isinstance(r, list) and r and all(isinstance(t, str) for t in r) for r in rows):
        raise ConfigError(f"engine.recording: each line of {path} must be a JSON list of at least one text.")
    return [tuple(row) for row in rows]


def _load_function(target: str) -> Callable[[ScriptedCall], Any]:
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise ConfigError(f"engine.function: '{target}' must be 'package.module:name' or 'path/to/file.py:name'.")
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        function = getattr(module, name)
    except Exception as error:
        raise ConfigError(f"engine.function: '{target}' cannot be loaded: {type(error).__name__}: {error}.") from error
    if not callable(function):
        raise ConfigError(f"engine.function: '{target}' is not a function.")
    return function  # type: ignore[no-any-return]
