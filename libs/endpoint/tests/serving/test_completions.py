"""Text completions of a served policy, as the official client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from ale.registry.hooks import Hooks
from ale.session.session import Sessions
from ale.specs.engine import Sampling
from ale_endpoint.serving.app import build_serving_app
from ale_endpoint.serving.completions import Completions
from ale_endpoint.serving.conversations import Conversations
from ale_endpoint.serving.served_policy import ServedPolicy
from ale_testing.fake_engines import TOKENIZER, ScriptedEngine


@asynccontextmanager
async def client_of(engine: ScriptedEngine, key: str | None = None) -> AsyncIterator[openai.AsyncOpenAI]:
    default = Sampling(max_tokens=64)
    policy = ServedPolicy(
        Conversations(Sessions(TOKENIZER, engine, Hooks()), engine.max_context), default, ["tiny"], key
    )
    app = build_serving_app(policy, engine, Completions(engine, TOKENIZER, default, engine.max_context))
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1/v1")
    async with openai.AsyncOpenAI(
        base_url="http://127.0.0.1/v1", api_key="k", http_client=http, max_retries=0
    ) as client:
        yield client


async def test_a_text_is_continued_without_a_template() -> None:
    engine = ScriptedEngine([" world. And more"])
    async with client_of(engine) as client:
        made = await client.completions.create(
            model="tiny", prompt="Hello", max_tokens=50, stop=".", temperature=0.5, top_p=0.9, seed=3
        )
    (request,) = engine.requests
    assert TOKENIZER.decode(request.token_ids) == "Hello"
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.max_tokens) == (0.5, 0.9, 50)
    assert request.sampling.seed is not None
    (choice,) = made.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == (" world", "stop", None)
    assert made.usage is not None
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (5, len(" world."))


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        (["one", "two"], ["one", "two"]),
        (TOKENIZER.encode("ids"), ["ids"]),
        ([TOKENIZER.encode("a"), TOKENIZER.encode("b")], ["a", "b"]),
    ],
)
async def test_prompts_are_texts_or_tokens_one_or_several(prompt: Any, read: list[str]) -> None:
    engine = ScriptedEngine(["x"] * 4)
    async with client_of(engine) as client:
        made = await client.completions.create(model="tiny", prompt=prompt, n=2)
    assert [TOKENIZER.decode(request.token_ids) for request in engine.requests] == [each for each in read for _ in "ab"]
    assert [choice.index for choice in made.choices] == list(range(2 * len(read)))


async def test_log_probabilities_and_the_echoed_prompt() -> None:
    async with client_of(ScriptedEngine(["yé"])) as client:
        made = await client.completions.create(model="tiny", prompt="ab", logprobs=1, echo=True)
        told = await client.completions.create(model="tiny", prompt="ab", max_tokens=0, echo=True)
    (choice,) = made.choices
    assert choice.text == "abyé"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert choice.logprobs.tokens[:3] == ["a", "b", "y"]
    assert choice.logprobs.token_logprobs == [None, None, -0.5, -0.5, -0.5], "é is two tokens"
    assert choice.logprobs.text_offset is not None
    assert choice.logprobs.text_offset[:4] == [0, 1, 2, 3]
    assert (told.choices[0].text, told.choices[0].finish_reason) == ("ab", "length")


async def test_a_stream_says_the_same() -> None:
    async with client_of(ScriptedEngine(["streamed"])) as client:
        options: Any = {"include_usage": True}
        stream = await client.completions.create(model="tiny", prompt="a", stream=True, stream_options=options)
        chunks = [chunk async for chunk in stream]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "streamed"
    assert chunks[-1].usage is not None


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ({"best_of": 3}, "'best_of' is refused"),
        ({"suffix": "x"}, "'suffix' is refused"),
        ({"temperature": 9}, "'temperature' must be a number from 0 to 2"),
        ({"prompt": [1 << 40]}, "'prompt' holds the token"),
        ({"prompt": []}, "prompt"),
        ({"prompt": "x" * 9000}, "maximum context length"),
        ({"extra_body": {"max_tokens": -1}}, "max_tokens"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(extra: dict[str, Any], sentence: str) -> None:
    async with client_of(ScriptedEngine()) as client:
        with pytest.raises(openai.BadRequestError, match=sentence):
            await client.completions.create(**{"model": "tiny", "prompt": "a", **extra})


async def test_strangers_get_no_completion() -> None:
    async with client_of(ScriptedEngine(["x"]), key="secret") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.completions.create(model="tiny", prompt="a")
