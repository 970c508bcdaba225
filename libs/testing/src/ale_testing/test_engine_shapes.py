"""These tests check models of other shapes in an engine, and what ends when it closes.

They come last, as each needs an engine that has loaded its model anew.
"""

from __future__ import annotations

import asyncio

import pytest

from ale.errors import EngineError
from ale_testing.async_tests import close, fails_with, patience_s
from ale_testing.engine_requests import LONG, ask, check, check_logprobs, weights_of
from ale_testing.shared_engine import SharedEngine, engine_test
from ale_testing.tiny_model import TinyShape

needs = pytest.mark.ale_needs
QWEN2_UNTIED = TinyShape("qwen2", tied=False)
LLAMA, LLAMA_TIED = TinyShape("llama", tied=False), TinyShape("llama")
QWEN3, QWEN3_TIED = TinyShape("qwen3", tied=False), TinyShape("qwen3")


@needs("real_tokens")
@engine_test()
async def test_logprobs_of_a_tied_qwen2_are_those_of_transformers(shared: SharedEngine) -> None:
    await _compare(shared)


@needs("real_tokens")
@engine_test(QWEN2_UNTIED)
async def test_logprobs_of_an_untied_qwen2_are_those_of_transformers(shared: SharedEngine) -> None:
    await _compare(shared)


@needs("real_tokens")
@engine_test(LLAMA_TIED)
async def test_logprobs_of_a_tied_llama_are_those_of_transformers(shared: SharedEngine) -> None:
    await _compare(shared)


@needs("real_tokens")
@engine_test(QWEN3_TIED)
async def test_logprobs_of_a_tied_qwen3_are_those_of_transformers(shared: SharedEngine) -> None:
    await _compare(shared)


@needs("real_tokens")
@engine_test(LLAMA)
async def test_logprobs_of_an_untied_llama_are_those_of_transformers(shared: SharedEngine) -> None:
    await _compare(shared)


@engine_test(LLAMA)
async def test_nothing_is_answered_after_close(shared: SharedEngine) -> None:
    engine, tokenizer = shared.engine, shared.tokenizer
    many = [asyncio.ensure_future(engine.generate(ask(tokenizer, session=f"b{i}", max_tokens=LONG))) for i in range(16)]
    await asyncio.sleep(0.01)
    await close(engine)
    done, waiting = await asyncio.wait(many, timeout=patience_s())
    assert not waiting, f"close() must end the generations under way; some still wait after {patience_s():g} s"
    for task in done:
        error = None if task.cancelled() else task.exception()
        assert error is None or isinstance(error, EngineError), (
            f"a generation that close() ends raises EngineError, not {error!r}"
        )
    await fails_with(
        asyncio.wait_for(engine.generate(ask(tokenizer)), patience_s()), EngineError, why="generate() after close()"
    )
    await shared.discard()


@needs("real_tokens")
@engine_test(QWEN3)
async def test_logprobs_of_an_untied_qwen3_are_those_of_transformers(shared: SharedEngine) -> None:
    await _compare(shared)


@engine_test(QWEN3)
async def test_close_ends_requests_that_wait_in_a_paused_engine(shared: SharedEngine) -> None:
    engine = shared.engine
    await engine.pause()
    waiting = asyncio.ensure_future(engine.generate(ask(shared.tokenizer)))
    await asyncio.sleep(0.05)
    await close(engine)
    await fails_with(
        asyncio.wait_for(waiting, patience_s()), EngineError, why="a request that waits when the engine closes"
    )
    await shared.discard()


async def _compare(shared: SharedEngine) -> None:
    """Sampled and greedy, several at once, before and after new weights."""
    for _ in range(2):
        requests = [
            ask(shared.tokenizer, "ls -la | " * (1 + 3 * i), session=f"shape{i}", seed=i, max_tokens=24, temperature=t)
            for i, t in enumerate((0.0, 0.5, 1.0, 1.0, 1.5))
        ]
        generations = await asyncio.gather(*map(shared.engine.generate, requests))
        for request, generation in zip(requests, generations, strict=True):
            check(generation, request, shared.tokenizer, real=True)
            check_logprobs(generation, request, weights_of(shared))
        await shared.update()
