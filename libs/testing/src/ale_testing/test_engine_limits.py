"""These tests check an engine's limits: calls that are given up, and contexts that are full to the last token."""

from __future__ import annotations

import asyncio

import pytest

from ale.errors import EngineError
from ale.specs.engine import GenerateRequest, Sampling
from ale_testing.async_tests import cancelled, fails_with, patience_s
from ale_testing.engine_requests import LONG, ask, check, check_logprobs, long_prompt, weights_of
from ale_testing.shared_engine import SharedEngine, engine_test

needs = pytest.mark.ale_needs
KEPT = (range(16), range(0, 16, 2), range(1, 16, 2), range(0, 16, 2), range(0), range(0), range(0), range(16))
"""Which of 16 calls are not given up, in each round: all at first, to see how long they take, then half, then none; at
last all of them need their slots again."""
ROOM = 8
"""Tokens that a full prompt leaves."""


@needs("real_tokens")
@engine_test()
async def test_of_16_requests_half_are_given_up_and_the_others_finish(shared: SharedEngine) -> None:
    engine, loop, took_s = shared.engine, asyncio.get_running_loop(), 0.0
    for number, kept in enumerate(KEPT):
        requests = [
            ask(shared.tokenizer, "x" * (1 + i), session=f"half{i}", seed=i, max_tokens=LONG) for i in range(16)
        ]
        began = loop.time()
        calls = [asyncio.ensure_future(engine.generate(request)) for request in requests]
        after_s = took_s * (1 + number % 3) / 5
        await asyncio.gather(*(cancelled(calls[i], after_s) for i in range(16) if i not in kept))
        try:
            generations = await asyncio.wait_for(asyncio.gather(*(calls[i] for i in kept)), patience_s())
        except TimeoutError:
            raise AssertionError(
                f"the calls beside those that were given up must finish: they did not within {patience_s():g} s; are "
                "the slots of earlier ones still taken?"
            ) from None
        except EngineError as error:
            raise AssertionError(f"giving up calls must not end the others; one raised EngineError: {error}") from error
        took_s = took_s or loop.time() - began
        for i, generation in zip(kept, generations, strict=True):
            check(generation, requests[i], shared.tokenizer, real=True)
            check_logprobs(generation, requests[i], weights_of(shared), "beside calls that were given up, ")


@needs("real_tokens")
@engine_test()
async def test_a_context_can_be_filled_to_its_last_token(shared: SharedEngine) -> None:
    engine, prompt = shared.engine, long_prompt(shared.tokenizer, shared.engine.max_context - ROOM)
    for max_tokens in (ROOM, ROOM + 1):
        request = GenerateRequest(prompt, Sampling(max_tokens=max_tokens, seed=3), session="full", call=max_tokens)
        generation = await engine.generate(request)
        n = len(generation.token_ids)
        assert (n, generation.finish_reason) == (ROOM, "length"), (
            f"a prompt of max_context - {ROOM} tokens leaves room for {ROOM}: max_tokens={max_tokens} gave {n} and "
            f"finish_reason {generation.finish_reason}"
        )
        check_logprobs(generation, request, weights_of(shared), "at the end of a full context, ")


@engine_test()
async def test_a_prompt_that_fills_the_context_is_refused_with_a_sentence(shared: SharedEngine) -> None:
    engine = shared.engine
    request = GenerateRequest(long_prompt(shared.tokenizer, engine.max_context), Sampling(max_tokens=1), session="full")
    error = await fails_with(
        asyncio.wait_for(engine.generate(request), patience_s()),
        EngineError,
        why="a prompt of max_context tokens, which leaves no room for one more",
    )
    text = str(error).replace(",", "")
    assert str(engine.max_context) in text, (
        f"the error must name the limit of {engine.max_context} tokens; it is '{error!s:.200}'"
    )
    assert "\n" not in str(error).strip(), f"the error must be a sentence, not '{error!s:.200}'"
