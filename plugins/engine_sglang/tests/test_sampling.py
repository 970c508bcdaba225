"""What a real server of SGLang samples, beside transformers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ale.errors import EngineError
from ale.specs.engine import GenerateRequest, Generation
from ale_engines.pool.replica import Interrupted
from ale_sglang.replica import SglangReplica
from ale_testing.hugging_face import logprobs

from .conftest import CONTEXT, LONG, request, wait_for_tokens

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]
PROMPT = [9, 250, 31, 77, 120]


def check_logprobs(folders: dict[int, Path], asked: GenerateRequest, got: Generation) -> None:
    wanted = logprobs(folders, asked.token_ids, got.token_ids, got.versions)
    assert got.logprobs == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}, {"temperature": 0.0}, {"top_p": 0.5, "top_k": 20}])
async def test_logprobs_are_those_at_temperature_1_with_nothing_cut_off(
    replica: SglangReplica, folders: dict[int, Path], sampling: dict[str, float]
) -> None:
    requests = [request(PROMPT[: 2 + i], seed=i, **sampling) for i in range(3)]
    for asked, got in zip(requests, await asyncio.gather(*map(replica.generate, requests)), strict=True):
        assert (len(got.token_ids), got.finish_reason, set(got.versions)) == (12, "length", {0})
        check_logprobs(folders, asked, got)


async def test_a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch(replica: SglangReplica) -> None:
    alone = await replica.generate(request(PROMPT, seed=7))
    among = await asyncio.gather(*(replica.generate(request(PROMPT, seed=seed)) for seed in (6, 7, 8, 7)))
    assert among[1].token_ids == among[3].token_ids == alone.token_ids
    assert len({got.token_ids for got in among}) == 3


async def test_requests_without_a_seed_differ(replica: SglangReplica) -> None:
    made = await asyncio.gather(*(replica.generate(request(PROMPT, seed=None)) for _ in range(4)))
    assert len({got.token_ids for got in made}) == 4


async def test_seeds_sample_each_token_as_often_as_it_is_likely(
    replica: SglangReplica, folders: dict[int, Path]
) -> None:
    likely = (await replica.generate(request(PROMPT, max_tokens=1, temperature=0.0))).token_ids[0]
    wanted = 2.718281828 ** logprobs(folders, PROMPT, [likely], [0])[0]
    made = await asyncio.gather(*(replica.generate(request(PROMPT, seed=s, max_tokens=1)) for s in range(400)))
    share = sum(got.token_ids[0] == likely for got in made) / 400
    assert share == pytest.approx(wanted, abs=4 * (wanted * (1 - wanted) / 400) ** 0.5)


async def test_a_stop_token_ends_a_generation_and_is_its_last(replica: SglangReplica) -> None:
    whole = await replica.generate(request(PROMPT, max_tokens=20))
    stop = whole.token_ids[6]
    got = await replica.generate(request(PROMPT, max_tokens=20, stop_token_ids=(stop,)))
    assert got.finish_reason == "stop"
    assert got.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]


async def test_the_end_token_of_the_models_configuration_is_an_ordinary_one(replica: SglangReplica) -> None:
    # 8 x 120 tokens of 300 contain the token 5 a few times.
    made = await asyncio.gather(*(replica.generate(request(PROMPT, seed=s, max_tokens=120)) for s in range(8)))
    assert {len(got.token_ids) for got in made} == {120}
    assert any(5 in got.token_ids for got in made)


async def test_a_context_is_used_to_its_last_token(replica: SglangReplica, folders: dict[int, Path]) -> None:
    asked = request([i % 299 for i in range(CONTEXT - 3)], max_tokens=50)
    got = await replica.generate(asked)
    assert (len(got.token_ids), got.finish_reason) == (3, "length")
    check_logprobs(folders, asked, got)
    longest = request([i % 299 for i in range(CONTEXT - 1)])
    assert len((await replica.generate(longest)).token_ids) == 1
    with pytest.raises(EngineError, match=f"context of {CONTEXT}"):
        await replica.generate(request([1] * CONTEXT))


async def test_interrupted_requests_give_what_they_had(replica: SglangReplica, folders: dict[int, Path]) -> None:
    requests = [request(PROMPT, seed=seed, max_tokens=LONG) for seed in range(7)]
    tasks = [asyncio.ensure_future(replica.generate(asked)) for asked in requests]
    await wait_for_tokens(replica, requests)
    await replica.interrupt()
    for asked, outcome in zip(requests, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
        assert isinstance(outcome, Interrupted), outcome
        assert 0 < len(outcome.partial.token_ids) < LONG
        check_logprobs(folders, asked, outcome.partial)


async def test_requests_can_be_interrupted_while_the_server_is_paused(replica: SglangReplica) -> None:
    asked = request(PROMPT, max_tokens=LONG)
    task = asyncio.ensure_future(replica.generate(asked))
    await wait_for_tokens(replica, [asked])
    await replica.pause()
    await replica.interrupt()
    await replica.resume()
    with pytest.raises(Interrupted):
        await task


async def test_a_request_that_comes_while_the_server_is_paused_can_be_interrupted(replica: SglangReplica) -> None:
    """SGLang holds it back, where no abort found it, and takes one abort of a request."""
    await replica.pause()
    try:
        task = asyncio.ensure_future(replica.generate(request(PROMPT, max_tokens=LONG)))
        await asyncio.sleep(0.5)  # until it is there; should it come later, it is aborted then
        async with asyncio.timeout(120):
            await replica.interrupt()
        with pytest.raises(Interrupted):
            await task
    finally:
        await replica.resume()
    assert len((await replica.generate(request(PROMPT, max_tokens=3))).token_ids) == 3


async def test_a_cancelled_request_ends_and_no_other_with_it(
    replica: SglangReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang aborts by the beginning of a name: request 1 must not take request 10 with it."""
    tasks = []
    for number, max_tokens in ((1, LONG), (10, 120)):
        monkeypatch.setattr(replica, "_requests", number - 1)
        asked = request(PROMPT, max_tokens=max_tokens)
        tasks.append(asyncio.ensure_future(replica.generate(asked)))
        await wait_for_tokens(replica, [asked])
    tasks[0].cancel()
    assert len((await tasks[1]).token_ids) == 120
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]


async def test_metrics_are_counted_here_and_by_the_server(replica: SglangReplica) -> None:
    before = replica.metrics()
    await replica.generate(request(PROMPT))
    await replica.generate(request(PROMPT))
    await replica.check()
    metrics = replica.metrics()
    assert metrics["prompt_tokens"] - before["prompt_tokens"] == 2 * len(PROMPT)
    assert metrics["cached_prompt_tokens"] - before["cached_prompt_tokens"] >= len(PROMPT) - 1
    assert metrics["server_sampled_tokens"] >= 24
