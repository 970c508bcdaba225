"""These tests check new weights: what is sampled is the model's with the weights of the token's version, whenever they
come."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

import pytest

from ale.errors import AleError
from ale.specs.engine import FolderTicket, GenerateRequest, Generation, PolicyVersion, Sampling
from ale_testing.async_tests import fails_with, patience_s
from ale_testing.engine_requests import LONG, ask, check, check_logprobs, long_prompt, weights_of
from ale_testing.shared_engine import SharedEngine, engine_test

needs = pytest.mark.ale_needs


@dataclass(frozen=True)
class UnknownTicket:
    """A ticket of a transport that no engine names."""

    transport: ClassVar[str] = "kit.unknown"


MOMENTS = (0.5, 0.3, 0.7, 0.15, 0.85, 0.4)
"""Shares of a generation's time after which an update begins; servers do not say how far they are."""
SHARED_PREFIX = 160
"""Tokens of a prompt that is sent again: more than a block of the caches of servers holds."""


@pytest.mark.ale_transport("folder")
@engine_test()
async def test_new_weights_from_a_folder_carry_their_version(shared: SharedEngine) -> None:
    await _update(shared, "folder")


@pytest.mark.ale_transport("memory")
@engine_test()
async def test_new_weights_from_memory_carry_their_version(shared: SharedEngine) -> None:
    await _update(shared, "memory")


async def _update(shared: SharedEngine, transport: str) -> None:
    request = ask(shared.tokenizer, temperature=0.0)
    before = await shared.engine.generate(request)
    policy = await shared.update(transport)
    after = await shared.engine.generate(request)
    assert set(after.versions) == {policy.version}, "tokens sampled after load_weights carry the new version"
    if shared.real:
        assert after.logprobs != before.logprobs, "load_weights must change what is sampled"
        check_logprobs(after, request, weights_of(shared), "after load_weights, ")


@needs("real_tokens")
@engine_test()
async def test_two_updates_in_a_row_leave_nothing_of_earlier_weights(shared: SharedEngine) -> None:
    request = GenerateRequest(
        long_prompt(shared.tokenizer, SHARED_PREFIX), Sampling(max_tokens=12, seed=7), session="twice"
    )
    for updates in (1, 2, 2):
        check_logprobs(await shared.engine.generate(request), request, weights_of(shared))
        for _ in range(updates):
            await shared.update()
        again = await shared.engine.generate(request)
        assert set(again.versions) == {shared.engine.version}, "tokens sampled after load_weights carry the new version"
        # The prompt is the same: a prefix that an engine has cached was computed with the weights before.
        check_logprobs(again, request, weights_of(shared), "after an update, with a prompt that was sent before, ")


@needs("real_tokens")
@engine_test()
async def test_an_update_in_mid_request_changes_the_tokens_after_it(shared: SharedEngine) -> None:
    engine, loop = shared.engine, asyncio.get_running_loop()
    requests = [ask(shared.tokenizer, session=f"mid{i}", seed=i, max_tokens=LONG) for i in range(4)]
    began = loop.time()
    await asyncio.gather(*map(engine.generate, requests))
    took_s = loop.time() - began
    for share in MOMENTS:
        weights = weights_of(shared)
        under_way = [asyncio.ensure_future(engine.generate(request)) for request in requests]
        await asyncio.sleep(share * took_s)
        await shared.update()
        generations = await asyncio.wait_for(asyncio.gather(*under_way), patience_s())
        for request, generation in zip(requests, generations, strict=True):
            check(generation, request, shared.tokenizer, real=True)
            check_logprobs(generation, request, weights | weights_of(shared), "with an update in mid-request, ")
        if any(len(set(generation.versions)) > 1 for generation in generations):
            return
    raise AssertionError(
        f"running generations continue with the new weights: of {len(MOMENTS)} updates during generations of {LONG} "
        "tokens, none led to one with tokens of both versions"
    )


@needs("real_tokens")
@engine_test()
async def test_updates_under_load_mix_up_no_versions(shared: SharedEngine) -> None:
    engine, weights = shared.engine, weights_of(shared)
    done: asyncio.Queue[tuple[GenerateRequest, Generation] | Exception] = asyncio.Queue()
    enough = asyncio.Event()

    async def work(number: int) -> None:
        call = 0
        try:
            while not enough.is_set():
                request = ask(
                    shared.tokenizer,
                    "x" * (1 + number % 5),
                    call,
                    f"load{number}",
                    seed=100 * number + call,
                    max_tokens=20 + number,
                )
                done.put_nowait((request, await engine.generate(request)))
                call += 1
        except Exception as error:
            done.put_nowait(error)

    workers = [asyncio.ensure_future(work(number)) for number in range(32)]
    results = []
    for _ in range(2):
        results.append(await asyncio.wait_for(done.get(), patience_s()))
        await shared.update()
        weights |= weights_of(shared)
    results.append(await asyncio.wait_for(done.get(), patience_s()))
    enough.set()
    await asyncio.wait_for(asyncio.gather(*workers), patience_s())
    while not done.empty():
        results.append(done.get_nowait())
    for result in results:
        if isinstance(result, Exception):
            raise result
        request, generation = result
        check(generation, request, shared.tokenizer, real=True)
        check_logprobs(generation, request, weights, "with updates under a load of 32 requests, ")


@needs("real_tokens")
@engine_test()
async def test_bad_weights_are_an_error_and_the_old_ones_stay(shared: SharedEngine) -> None:
    engine, version = shared.engine, shared.engine.version
    await fails_with(
        engine.load_weights(PolicyVersion(version + 1, FolderTicket(shared.subject.folder / "no-such-folder"))),
        AleError,
        why="weights that are not there",
    )
    await fails_with(
        engine.load_weights(PolicyVersion(version + 1, UnknownTicket())),
        AleError,
        why="a ticket of an unknown transport",
    )
    assert engine.version == version, "weights that could not be loaded must not raise the version"
    request = ask(shared.tokenizer)
    check_logprobs(await engine.generate(request), request, weights_of(shared), "after weights that cannot be loaded, ")
