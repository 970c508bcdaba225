"""These tests check that an engine returns token ids, log-probabilities and versions, for many requests at once."""

from __future__ import annotations

import asyncio

import pytest

from ale.errors import EngineError
from ale.specs.engine import GenerateRequest, Sampling
from ale_testing.async_tests import cancelled, fails_with, patience_s
from ale_testing.engine_requests import ask, check
from ale_testing.shared_engine import SharedEngine, engine_test

needs = pytest.mark.ale_needs


@engine_test()
async def test_a_generation_has_a_logprob_and_a_version_for_each_token(shared: SharedEngine) -> None:
    engine, tokenizer = shared.engine, shared.tokenizer
    request = ask(tokenizer, stop_token_ids=tokenizer.stop_token_ids)
    check(await engine.generate(request), request, tokenizer, real=shared.real)
    assert engine.max_context > 0, "max_context must say how many tokens fit"


@engine_test()
async def test_metrics_are_counted(shared: SharedEngine) -> None:
    engine, before = shared.engine, shared.engine.metrics()
    answer = await engine.generate(ask(shared.tokenizer))
    metrics = engine.metrics()
    missing = {"prompt_tokens", "sampled_tokens", "busy_s", "slot_use"} - set(metrics)
    assert not missing, f"metrics() must give {', '.join(sorted(missing))}"
    assert metrics["sampled_tokens"] - before["sampled_tokens"] == len(answer.token_ids), (
        "sampled_tokens counts what was sampled since the start"
    )


@engine_test()
async def test_concurrent_requests_are_all_answered(shared: SharedEngine) -> None:
    engine, tokenizer = shared.engine, shared.tokenizer
    requests = [ask(tokenizer, "x" * (1 + i % 7), session=f"s{i}", seed=i, max_tokens=1 + i % 9) for i in range(40)]
    for request, generation in zip(requests, await asyncio.gather(*map(engine.generate, requests)), strict=True):
        check(generation, request, tokenizer, real=shared.real)


@engine_test()
async def test_the_same_seed_samples_the_same_tokens(shared: SharedEngine) -> None:
    engine, tokenizer = shared.engine, shared.tokenizer
    for sampling in ({"seed": 3}, {"temperature": 0.0, "seed": None}):
        first, second = [await engine.generate(ask(tokenizer, **sampling)) for _ in range(2)]
        assert first.token_ids == second.token_ids, f"the same request with {sampling} must sample the same tokens"


@needs("real_tokens")
@engine_test()
async def test_other_seeds_sample_other_tokens_and_logprobs_are_those_at_temperature_1(shared: SharedEngine) -> None:
    engine, tokenizer = shared.engine, shared.tokenizer
    several = [await engine.generate(ask(tokenizer, seed=i)) for i in range(6)]
    assert len({g.token_ids for g in several}) > 1, "at temperature 1 other seeds must give other samples"
    greedy = await engine.generate(ask(tokenizer, temperature=0.0))
    hot = [await engine.generate(ask(tokenizer, temperature=t, seed=i, top_k=1)) for i, t in enumerate((0.3, 2.0))]
    for generation in hot:
        assert generation.token_ids == greedy.token_ids, "top_k=1 leaves only the likeliest token"
        apart = max(abs(a - b) for a, b in zip(generation.logprobs, greedy.logprobs, strict=True))
        assert apart < 1e-3, "logprobs are the model's at temperature 1 with nothing cut off, whatever the sampling"


@needs("real_tokens")
@engine_test()
async def test_a_stop_token_ends_the_generation_and_is_its_last_token(shared: SharedEngine) -> None:
    engine, tokenizer = shared.engine, shared.tokenizer
    free = await engine.generate(ask(tokenizer))
    stop = free.token_ids[5]
    request = ask(tokenizer, stop_token_ids=(stop,))
    ended = await engine.generate(request)
    check(ended, request, tokenizer, real=shared.real)
    assert ended.finish_reason == "stop", "a sampled stop token must end the generation"
    assert ended.token_ids == free.token_ids[: free.token_ids.index(stop) + 1], "tokens up to and with the stop token"


@engine_test()
async def test_cancelling_a_call_frees_its_slot(shared: SharedEngine) -> None:
    engine, tokenizer = shared.engine, shared.tokenizer
    for after_s in (0.0, 0.001, 0.01, 0.05):
        await asyncio.gather(
            *(cancelled(engine.generate(ask(tokenizer, session=f"c{i}", max_tokens=60)), after_s) for i in range(24))
        )
    request = ask(tokenizer)
    answer = await asyncio.wait_for(engine.generate(request), patience_s())
    check(answer, request, tokenizer, real=shared.real)


@engine_test()
async def test_a_request_that_cannot_fit_is_refused(shared: SharedEngine) -> None:
    engine, tokenizer = shared.engine, shared.tokenizer
    (token, *_) = tokenizer.encode("a")
    request = GenerateRequest((token,) * (engine.max_context + 1), Sampling(max_tokens=4), session="long", call=0)
    await fails_with(engine.generate(request), EngineError, why="a prompt beyond max_context")
    check(await engine.generate(ask(tokenizer)), ask(tokenizer), tokenizer, real=shared.real)


@engine_test()
async def test_requests_wait_while_an_engine_is_paused(shared: SharedEngine) -> None:
    engine, tokenizer = shared.engine, shared.tokenizer
    await engine.pause()
    await engine.pause()
    waiting = asyncio.ensure_future(engine.generate(ask(tokenizer)))
    done, _ = await asyncio.wait([waiting], timeout=0.5)
    assert not done, "a paused engine must let requests wait; it answered"
    await engine.resume()
    answer = await asyncio.wait_for(waiting, patience_s())
    assert answer.token_ids, "an engine must go on after resume()"
