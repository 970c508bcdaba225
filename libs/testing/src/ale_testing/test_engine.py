"""These tests check that an engine returns token ids, log-probabilities and versions, for many requests at once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ale.errors import AleError, EngineError
from ale.session.tokenizer import ChatTokenizer, byte_tokenizer
from ale.specs.engine import (
    FolderTicket,
    GenerateRequest,
    Generation,
    InferenceEngine,
    MemoryTicket,
    PolicyVersion,
    Sampling,
)
from ale_testing.async_tests import async_test, cancelled, close, fails_with, patience_s
from ale_testing.plugin_under_test import Subject
from ale_testing.tiny_model import write_tiny_model

needs = pytest.mark.ale_needs


@dataclass(frozen=True)
class UnknownTicket:
    """A ticket of a transport that no engine names."""

    transport: ClassVar[str] = "kit.unknown"


@asynccontextmanager
async def loaded(subject: Subject) -> AsyncIterator[tuple[InferenceEngine, ChatTokenizer, Path | None]]:
    """An engine with the kit's tiny model where it samples from models, else with none."""
    folder: Path | None = None
    tokenizer = byte_tokenizer()
    if subject.can("real_tokens"):
        folder = subject.folder / "tiny"
        tokenizer = write_tiny_model(folder)
    async with subject.build() as engine:
        await engine.load_model(folder, tokenizer)
        yield engine, tokenizer, folder


def ask(
    tokenizer: ChatTokenizer, text: str = "ls -la", call: int = 0, session: str = "kit", **sampling: Any
) -> GenerateRequest:
    """A request; nothing stops it but `max_tokens`, unless it says otherwise."""
    wish: dict[str, Any] = {"temperature": 1.0, "max_tokens": 12, "seed": 7, **sampling}
    return GenerateRequest(tuple(tokenizer.encode(text)), Sampling(**wish), session=session, call=call)


def check(generation: Generation, request: GenerateRequest, tokenizer: ChatTokenizer, *, real: bool) -> None:
    """What every generation must be. An engine without a model may end its answers by itself."""
    vocabulary = tokenizer.vocab_size
    own_stops = () if real else tokenizer.stop_token_ids
    n = len(generation.token_ids)
    assert n == len(generation.logprobs) == len(generation.versions), (
        f"one log-probability and one version a token: {n} tokens, {len(generation.logprobs)} log-probabilities, "
        f"{len(generation.versions)} versions"
    )
    assert 0 < n <= request.sampling.max_tokens, f"1 to max_tokens={request.sampling.max_tokens} tokens, not {n}"
    assert all(isinstance(t, int) and 0 <= t < vocabulary for t in generation.token_ids), "token ids of the vocabulary"
    assert all(math.isfinite(p) and p <= 1e-5 for p in generation.logprobs), (
        "log-probabilities are finite and at most 0"
    )
    assert all(isinstance(v, int) for v in generation.versions), "versions are whole numbers"
    stops = {*request.sampling.stop_token_ids, *own_stops}
    if generation.finish_reason == "stop":
        assert generation.token_ids[-1] in stops, "a generation that stopped ends with its stop token"
        assert not set(generation.token_ids[:-1]) & stops, "it must end at the first stop token"
    else:
        assert generation.finish_reason == "length", (
            f"finish_reason must be stop or length, not {generation.finish_reason}"
        )
        assert n == request.sampling.max_tokens, "a generation cut by length has max_tokens tokens"


@async_test
async def test_a_generation_has_a_logprob_and_a_version_for_each_token(subject: Subject) -> None:
    async with loaded(subject) as (engine, tokenizer, _):
        request = ask(tokenizer, stop_token_ids=tokenizer.stop_token_ids)
        check(await engine.generate(request), request, tokenizer, real=subject.can("real_tokens"))
        assert engine.version == 0, f"the version of a model that was just loaded is 0, not {engine.version}"
        assert engine.max_context > 0, "max_context must say how many tokens fit"


@async_test
async def test_concurrent_requests_are_all_answered(subject: Subject) -> None:
    async with loaded(subject) as (engine, tokenizer, _):
        requests = [ask(tokenizer, "x" * (1 + i % 7), session=f"s{i}", seed=i, max_tokens=1 + i % 9) for i in range(40)]
        for request, generation in zip(requests, await asyncio.gather(*map(engine.generate, requests)), strict=True):
            check(generation, request, tokenizer, real=subject.can("real_tokens"))


@async_test
async def test_the_same_seed_samples_the_same_tokens(subject: Subject) -> None:
    async with loaded(subject) as (engine, tokenizer, _):
        for sampling in ({"seed": 3}, {"temperature": 0.0, "seed": None}):
            first, second = [await engine.generate(ask(tokenizer, **sampling)) for _ in range(2)]
            assert first.token_ids == second.token_ids, f"the same request with {sampling} must sample the same tokens"


@needs("real_tokens")
@async_test
async def test_other_seeds_sample_other_tokens_and_logprobs_are_those_at_temperature_1(subject: Subject) -> None:
    async with loaded(subject) as (engine, tokenizer, _):
        several = [await engine.generate(ask(tokenizer, seed=i)) for i in range(6)]
        assert len({g.token_ids for g in several}) > 1, "at temperature 1 other seeds must give other samples"
        greedy = await engine.generate(ask(tokenizer, temperature=0.0))
        hot = [await engine.generate(ask(tokenizer, temperature=t, seed=i, top_k=1)) for i, t in enumerate((0.3, 2.0))]
        for generation in hot:
            assert generation.token_ids == greedy.token_ids, "top_k=1 leaves only the likeliest token"
            apart = max(abs(a - b) for a, b in zip(generation.logprobs, greedy.logprobs, strict=True))
            assert apart < 1e-3, "logprobs are the model's at temperature 1 with nothing cut off, whatever the sampling"


@needs("real_tokens")
@async_test
async def test_a_stop_token_ends_the_generation_and_is_its_last_token(subject: Subject) -> None:
    async with loaded(subject) as (engine, tokenizer, _):
        free = await engine.generate(ask(tokenizer))
        stop = free.token_ids[5]
        request = ask(tokenizer, stop_token_ids=(stop,))
        ended = await engine.generate(request)
        check(ended, request, tokenizer, real=subject.can("real_tokens"))
        assert ended.finish_reason == "stop", "a sampled stop token must end the generation"
        assert ended.token_ids == free.token_ids[: free.token_ids.index(stop) + 1], (
            "tokens up to and with the stop token"
        )


@async_test
async def test_cancelling_a_call_frees_its_slot(subject: Subject) -> None:
    async with loaded(subject) as (engine, tokenizer, _):
        for after_s in (0.0, 0.001, 0.01, 0.05):
            await asyncio.gather(
                *(
                    cancelled(engine.generate(ask(tokenizer, session=f"c{i}", max_tokens=60)), after_s)
                    for i in range(24)
                )
            )
        request = ask(tokenizer)
        answer = await asyncio.wait_for(engine.generate(request), patience_s())
        check(answer, request, tokenizer, real=subject.can("real_tokens"))


@async_test
async def test_a_request_that_cannot_fit_is_refused(subject: Subject) -> None:
    async with loaded(subject) as (engine, tokenizer, _):
        (token, *_) = tokenizer.encode("a")
        request = GenerateRequest((token,) * (engine.max_context + 1), Sampling(max_tokens=4), session="long", call=0)
        await fails_with(engine.generate(request), EngineError, why="a prompt beyond max_context")
        check(await engine.generate(ask(tokenizer)), ask(tokenizer), tokenizer, real=subject.can("real_tokens"))


@async_test
async def test_requests_wait_while_an_engine_is_paused(subject: Subject) -> None:
    async with loaded(subject) as (engine, tokenizer, _):
        await engine.pause()
        await engine.pause()
        waiting = asyncio.ensure_future(engine.generate(ask(tokenizer)))
        done, _ = await asyncio.wait([waiting], timeout=0.5)
        assert not done, "a paused engine must let requests wait; it answered"
        await engine.resume()
        answer = await asyncio.wait_for(waiting, 30)
        assert answer.token_ids, "an engine must go on after resume()"
        await engine.pause()
        waiting = asyncio.ensure_future(engine.generate(ask(tokenizer)))
        await asyncio.sleep(0.05)
        await close(engine)
        await fails_with(asyncio.wait_for(waiting, 30), EngineError, why="a request that waits when the engine closes")


@async_test
async def test_nothing_is_answered_after_close(subject: Subject) -> None:
    async with loaded(subject) as (engine, tokenizer, _):
        many = [
            asyncio.ensure_future(engine.generate(ask(tokenizer, session=f"b{i}", max_tokens=100))) for i in range(16)
        ]
        await asyncio.sleep(0.01)
        await close(engine)
        done, waiting = await asyncio.wait(many, timeout=30)
        assert not waiting, "close() must end the generations under way; some still wait after 30 s"
        for task in done:
            error = None if task.cancelled() else task.exception()
            assert error is None or isinstance(error, EngineError), (
                f"a generation that close() ends raises EngineError, not {error!r}"
            )
        await fails_with(
            asyncio.wait_for(engine.generate(ask(tokenizer)), 30), EngineError, why="generate() after close()"
        )


@async_test
async def test_metrics_are_counted(subject: Subject) -> None:
    async with loaded(subject) as (engine, tokenizer, _):
        answer = await engine.generate(ask(tokenizer))
        metrics = engine.metrics()
        missing = {"prompt_tokens", "sampled_tokens", "busy_s", "slot_use"} - set(metrics)
        assert not missing, f"metrics() must give {', '.join(sorted(missing))}"
        assert metrics["sampled_tokens"] == len(answer.token_ids), (
            "sampled_tokens counts what was sampled since the start"
        )


@needs("real_tokens")
@async_test
async def test_loading_again_replaces_the_model(subject: Subject) -> None:
    async with loaded(subject) as (engine, tokenizer, _):
        request = ask(tokenizer, temperature=0.0)
        first = await engine.generate(request)
        other = subject.folder / "tiny-other"
        await engine.load_model(other, write_tiny_model(other, seed=1))
        second = await engine.generate(request)
        assert first.token_ids != second.token_ids or first.logprobs != second.logprobs, (
            "load_model must replace the model"
        )


@pytest.mark.ale_transport("folder")
@async_test
async def test_new_weights_from_a_folder_carry_their_version(subject: Subject) -> None:
    other = subject.folder / "tiny-update"
    write_tiny_model(other, seed=2)
    await _update(subject, PolicyVersion(3, FolderTicket(other)))


@pytest.mark.ale_transport("memory")
@async_test
async def test_new_weights_from_memory_carry_their_version(subject: Subject) -> None:
    torch = pytest.importorskip("torch", reason="weights in memory are tensors")
    from safetensors.numpy import load_file

    other = subject.folder / "tiny-memory"
    write_tiny_model(other, seed=3)
    weights = {
        name: torch.from_numpy(array.copy()) for name, array in load_file(str(other / "model.safetensors")).items()
    }
    await _update(subject, PolicyVersion(5, MemoryTicket(weights)))


async def _update(subject: Subject, policy: PolicyVersion) -> None:
    async with loaded(subject) as (engine, tokenizer, _):
        request = ask(tokenizer, temperature=0.0)
        before = await engine.generate(request)
        under_way = asyncio.ensure_future(
            engine.generate(replace(request, sampling=replace(request.sampling, max_tokens=100)))
        )
        await asyncio.sleep(0.01)
        await engine.load_weights(policy)
        assert engine.version == policy.version, (
            f"version must be {policy.version} after load_weights, not {engine.version}"
        )
        versions = (await under_way).versions
        assert list(versions) == sorted(versions), "within a generation versions never fall"
        assert set(versions) <= {0, policy.version}, f"tokens carry the version that sampled them, not {set(versions)}"
        after = await engine.generate(request)
        assert set(after.versions) == {policy.version}, "tokens sampled after load_weights carry the new version"
        assert after.logprobs != before.logprobs, "load_weights must change what is sampled"


@async_test
async def test_bad_weights_are_an_error_and_the_old_ones_stay(subject: Subject) -> None:
    async with loaded(subject) as (engine, tokenizer, folder):
        if folder is None:
            return
        await fails_with(
            engine.load_weights(PolicyVersion(9, FolderTicket(folder / "no-such-folder"))),
            AleError,
            why="weights that are not there",
        )
        await fails_with(
            engine.load_weights(PolicyVersion(9, UnknownTicket())), AleError, why="a ticket of an unknown transport"
        )
        assert engine.version == 0, "weights that could not be loaded must not raise the version"
        assert (await engine.generate(ask(tokenizer))).token_ids, "the engine must go on with the weights it has"
