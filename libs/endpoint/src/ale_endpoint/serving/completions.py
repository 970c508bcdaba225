"""`POST /v1/completions` of `ale serve`: the policy goes on after a text or after tokens, without a chat template.

Nothing is kept between calls. A text is tokenized as the tokenizer itself does it (with its BOS, where it has one).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ale.errors import ContextExceeded, RequestRefused
from ale.messages import TokenLogprob
from ale.session.generation_checks import check_generation
from ale.session.replies import cut_at_stop
from ale.session.token_bytes import describe_tokens
from ale.session.tokenizer import ChatTokenizer
from ale.specs.engine import GenerateRequest, InferenceEngine, Sampling
from ale_endpoint.dialects.chat_completions import MOST_CHOICES, StreamOptions
from ale_endpoint.dialects.dialect import Event
from ale_endpoint.dialects.request_models import Shape, Text, Texts, whole_number
from ale_endpoint.serving.served_policy import sampling_of_fields

LONGEST = 16
"""Tokens of an answer if the request does not say, as in OpenAI's API."""
MOST_LOGPROBS = 5
Whole = Annotated[int, BeforeValidator(whole_number)]
TokenIds = Annotated[list[Whole], Field(min_length=1)]


class CompletionRequest(Shape):
    """The body of `POST /v1/completions`."""

    prompt: (
        Text | TokenIds | Annotated[list[Text], Field(min_length=1)] | Annotated[list[TokenIds], Field(min_length=1)]
    )
    model: Text | None = None
    max_tokens: Annotated[int, Field(ge=0), BeforeValidator(whole_number)] | None = None
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    stop: Texts | None = None
    seed: Whole | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES), BeforeValidator(whole_number)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS), BeforeValidator(whole_number)] | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    best_of: Whole | None = None
    suffix: Text | None = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    logit_bias: Any = None

    def check(self) -> None:
        """Raise `RequestRefused` for what would change the answer and cannot be done."""
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise RequestRefused("'best_of' is refused: no answers are compared; ask for them with 'n'.")
        for name in ("suffix", "frequency_penalty", "presence_penalty", "logit_bias"):
            if getattr(self, name):
                raise RequestRefused(f"'{name}' is refused: the engines sample without it; leave it out.")


@dataclass(frozen=True, slots=True)
class Completed:
    """One choice."""

    text: str
    finish: str
    prompt_tokens: int
    tokens: tuple[TokenLogprob, ...]
    sampled: int


class Completions:
    """The policy behind the route."""

    def __init__(self, engine: InferenceEngine, tokenizer: ChatTokenizer, default: Sampling, max_context: int) -> None:
        self._engine, self._tokenizer = engine, tokenizer
        self._default, self._max_context = default, max_context
        self._number = 0

    async def answer(self, asked: CompletionRequest) -> dict[str, Any]:
        """Return the whole answer. Raises `AleError`."""
        asked.check()
        prompts = [self._read(prompt) for prompt in prompts_of(asked)]
        each = [(ids, i) for ids in prompts for i in range(asked.n or 1)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._complete(asked, ids, i)) for ids, i in each]
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        made = [task.result() for task in tasks]
        sampled = sum(one.sampled for one in made)
        counted = sum(map(len, prompts))
        self._number += 1
        return {
            "id": f"cmpl-{self._number}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": asked.model or "policy",
            "choices": [
                {
                    "index": i,
                    "text": one.text,
                    "finish_reason": one.finish,
                    "logprobs": None if asked.logprobs is None else write_logprobs(one.tokens),
                }
                for i, one in enumerate(made)
            ],
            "usage": {"prompt_tokens": counted, "completion_tokens": sampled, "total_tokens": counted + sampled},
        }

    def _read(self, prompt: str | list[int]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return (*self._tokenizer.around_text[0], *self._tokenizer.encode(prompt))
        wrong = next((token for token in prompt if not 0 <= token < self._tokenizer.id_limit), None)
        if wrong is not None:
            raise RequestRefused(f"'prompt' holds the token {wrong}; the vocabulary has {self._tokenizer.id_limit}.")
        return tuple(prompt)

    async def _complete(self, asked: CompletionRequest, ids: tuple[int, ...], number: int) -> Completed:
        tokenizer = self._tokenizer
        room = self._max_context - len(ids)
        longest = min(LONGEST if asked.max_tokens is None else asked.max_tokens, room)
        shown = tokenizer.decode(ids) if asked.echo else ""
        before = tuple(TokenLogprob(tokenizer.decode([token]), float("nan")) for token in ids) if asked.echo else ()
        if asked.max_tokens == 0:
            return Completed(shown, "length", len(ids), before, 0)
        if not ids or room < 1:
            raise ContextExceeded(
                f"The prompt has {len(ids)} tokens, and this model's maximum context length is {self._max_context}: "
                "there must be one token, and room for another."
            )
        wished = {name: getattr(asked, name) for name in ("temperature", "top_p", "top_k")}
        sampling = replace(
            sampling_of_fields(wished, self._default),
            max_tokens=longest,
            stop_token_ids=tokenizer.stop_token_ids,
            seed=None if asked.seed is None else (asked.seed * 1_000_003 + number) % (1 << 62),
        )
        self._number += 1
        request = GenerateRequest(ids, sampling, session=f"completion-{self._number}")
        found: object = await self._engine.generate(request)
        generation = check_generation(found, request, tokenizer.id_limit)
        generation, text, stop = cut_at_stop(tokenizer, generation, asked.stop or (), lambda text: 0)
        ended = stop is not None or tokenizer.split_stop(generation.token_ids)[1] is not None
        tokens = tuple(describe_tokens(tokenizer, generation, text)) if asked.logprobs is not None else ()
        whole = (*before, *(token for token in tokens if token.data is not None))
        return Completed(shown + text, "stop" if ended else "length", len(ids), whole, len(generation.token_ids))


def prompts_of(asked: CompletionRequest) -> Sequence[str | list[int]]:
    """Return the prompts of a request, of which there may be one or several."""
    prompt: Any = asked.prompt
    one = isinstance(prompt, str) or isinstance(prompt[0], int)
    return [prompt] if one else prompt


def write_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Write tokens as this API does. The engine knows the log-probabilities of what it sampled: those of a prompt that
    is echoed are null."""
    known = [None if token.logprob != token.logprob else token.logprob for token in tokens]
    offsets = accumulate((len(token.text) for token in tokens[:-1]), initial=0) if tokens else ()
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": known,
        "top_logprobs": [
            None if value is None else {token.text: value} for token, value in zip(tokens, known, strict=True)
        ],
        "text_offset": list(offsets),
    }


def write_stream(asked: CompletionRequest, whole: dict[str, Any]) -> Iterator[Event]:
    """Write an answer as a stream: each choice is a chunk."""
    usage = bool(asked.stream_options and asked.stream_options.include_usage)
    base = {key: whole[key] for key in ("id", "object", "created", "model")}
    for choice in whole["choices"]:
        yield Event({**base, "choices": [choice], **({"usage": None} if usage else {})})
    if usage:
        yield Event({**base, "choices": [], "usage": whole["usage"]})
    yield Event("[DONE]")
