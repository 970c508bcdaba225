"""`POST /v1/completions` of `ale serve`: the policy goes on after a text or after tokens, without a chat template.

Nothing is kept between calls. A text is tokenized as the tokenizer itself does it (with its BOS, where it has one).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ale.errors import ContextExceeded, RequestRefused
from ale.messages import TokenLogprob
from ale.session.generation_checks import check_generation
from ale.session.partial_replies import PartialReply, following
from ale.session.replies import cut_at_stop
from ale.session.reply_format import ReplyForm
from ale.session.token_bytes import describe_tokens
from ale.session.tokenizer import ChatTokenizer
from ale.specs.engine import FollowedEngine, GenerateRequest, InferenceEngine, Sampling
from ale_endpoint.dialects.chat_completions import MOST_CHOICES, StreamOptions
from ale_endpoint.dialects.dialect import Event
from ale_endpoint.dialects.request_models import Shape, Text, Texts, whole_number
from ale_endpoint.serving.served_policy import sampling_of_fields

LONGEST = 16
"""Tokens of an answer if the request does not say, as in OpenAI's API."""
MOST_LOGPROBS = 5
Whole = Annotated[int, BeforeValidator(whole_number)]
WITHOUT_MARKS = ReplyForm(thoughts=None)
"""Text completions know neither thoughts nor calls."""
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


Show = Callable[[int, str, Completed | None], None]
"""It gets the number of a choice, and a piece of its text, or the whole choice once it is complete."""


class Completions:
    """The policy behind the route."""

    def __init__(self, engine: InferenceEngine, tokenizer: ChatTokenizer, default: Sampling, max_context: int) -> None:
        self._engine, self._tokenizer = engine, tokenizer
        self._default, self._max_context = default, max_context
        self._number = 0

    async def answer(self, asked: CompletionRequest) -> dict[str, Any]:
        """Return the whole answer. Raises `AleError`."""
        head, made = self._head(asked), await self._complete_all(asked, None)
        choices = [self._write(asked, i, one.text, one) for i, one in enumerate(made)]
        return {**head, "choices": choices, "usage": usage_of(asked, made)}

    async def stream(self, asked: CompletionRequest, put: Callable[[Event], None]) -> None:
        """Write the answer as a stream: the text of each choice as its tokens come, if the engine says them. A choice
        with log-probabilities is one event, when it is complete. Raises `AleError`."""
        head = self._head(asked)
        usage = bool(asked.stream_options and asked.stream_options.include_usage)
        head |= {"usage": None} if usage else {}
        sent: dict[int, str] = {}

        def show(index: int, text: str, whole: Completed | None) -> None:
            before = sent.get(index, "")
            if whole is not None:
                text = whole.text.removeprefix(before)
            sent[index] = before + text
            put(Event({**head, "choices": [self._write(asked, index, text, whole)]}))

        made = await self._complete_all(asked, show)
        if usage:
            put(Event({**head, "choices": [], "usage": usage_of(asked, made)}))
        put(Event("[DONE]"))

    def _head(self, asked: CompletionRequest) -> dict[str, Any]:
        self._number += 1
        made, model = int(time.time()), asked.model or "policy"
        return {"id": f"cmpl-{self._number}", "object": "text_completion", "created": made, "model": model}

    def _write(self, asked: CompletionRequest, index: int, text: str, whole: Completed | None) -> dict[str, Any]:
        """Write a choice, or a piece of one that is not complete."""
        finish = None if whole is None else whole.finish
        probabilities = None if asked.logprobs is None or whole is None else write_logprobs(whole.tokens)
        return {"index": index, "text": text, "finish_reason": finish, "logprobs": probabilities}

    async def _complete_all(self, asked: CompletionRequest, show: Show | None) -> list[Completed]:
        """Return all choices; each is shown when it is complete, and its pieces before that."""
        asked.check()
        prompts = [self._read(prompt) for prompt in prompts_of(asked)]

        async def one(index: int, ids: tuple[int, ...], number: int) -> Completed:
            def show_piece(text: str) -> None:
                if show is not None:
                    show(index, text, None)

            in_pieces = show is not None and asked.logprobs is None
            made = await self._complete(asked, ids, number, show_piece if in_pieces else None)
            if show is not None:
                show(index, made.text, made)
            return made

        each = enumerate((ids, i) for ids in prompts for i in range(asked.n or 1))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(index, ids, i)) for index, (ids, i) in each]
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        return [task.result() for task in tasks]

    def _read(self, prompt: str | list[int]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return (*self._tokenizer.around_text[0], *self._tokenizer.encode(prompt))
        wrong = next((token for token in prompt if not 0 <= token < self._tokenizer.id_limit), None)
        if wrong is not None:
            raise RequestRefused(f"'prompt' holds the token {wrong}; the vocabulary has {self._tokenizer.id_limit}.")
        return tuple(prompt)

    async def _complete(
        self, asked: CompletionRequest, ids: tuple[int, ...], number: int, show: Callable[[str], None] | None
    ) -> Completed:
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
        if show is not None and shown:
            show(shown)
        found = await self._generate(request, asked, show)
        generation = check_generation(found, request, tokenizer.id_limit)
        generation, text, stop = cut_at_stop(tokenizer, generation, asked.stop or (), lambda text: 0)
        ended = stop is not None or tokenizer.split_stop(generation.token_ids)[1] is not None
        tokens = tuple(describe_tokens(tokenizer, generation, text)) if asked.logprobs is not None else ()
        whole = (*before, *(token for token in tokens if token.data is not None))
        return Completed(shown + text, "stop" if ended else "length", len(ids), whole, len(generation.token_ids))

    async def _generate(
        self, request: GenerateRequest, asked: CompletionRequest, show: Callable[[str], None] | None
    ) -> object:
        """Sample an answer, and show its text meanwhile."""
        if show is None or not isinstance(self._engine, FollowedEngine):
            return await self._engine.generate(request)
        reply = PartialReply(self._tokenizer, WITHOUT_MARKS, asked.stop or (), calls=False, within=False)
        async with following(self._engine, request, reply, 0, lambda piece: show(piece.content)):
            return await self._engine.generate(request)


def prompts_of(asked: CompletionRequest) -> Sequence[str | list[int]]:
    """Return the prompts of a request, of which there may be one or several."""
    prompt: Any = asked.prompt
    one = isinstance(prompt, str) or isinstance(prompt[0], int)
    return [prompt] if one else prompt


def usage_of(asked: CompletionRequest, made: Sequence[Completed]) -> dict[str, int]:
    """Count the tokens of an answer; each prompt counts once."""
    counted = sum(one.prompt_tokens for one in made[:: asked.n or 1])
    sampled = sum(one.sampled for one in made)
    return {"prompt_tokens": counted, "completion_tokens": sampled, "total_tokens": counted + sampled}


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
