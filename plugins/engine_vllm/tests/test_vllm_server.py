"""A real server of vLLM on the CPU: one for all tests of this file, which follow each other."""

from __future__ import annotations

import asyncio
import glob
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file

from ale.errors import EngineError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, GenerateRequest, Generation, MemoryTicket, PolicyVersion
from ale_engines.pool.replica import Interrupted
from ale_engines.server.python_environments import find_python
from ale_engines.server.sampled_tokens import STREAM_INTERVAL
from ale_engines.server.settings import ServerSettings
from ale_torch.weights.sender import WeightSender
from ale_vllm.replica import VllmReplica

from .conftest import ModelOf, logprobs_of, make_model, request

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(
        find_python("vllm", "cpu") is None,
        reason="vLLM's environment is not installed: `ale engine install vllm --cpu`",
    ),
]
LONG = tuple(i % 80 for i in range(7, 107))
LATE = 1000
"""So many tokens take seconds: a request of them still runs when a test has seen the first."""
SETTINGS = ServerSettings(threads=1, max_batch=8, max_context=1024, device="cpu")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vllm(model_of: ModelOf, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmReplica]:
    """A server with the tied model of seed 0."""
    async with VllmReplica(SETTINGS, DriverContext(run_dir=tmp_path_factory.mktemp("run"))) as replica:
        await replica.load_model(model_of(True, 0), byte_tokenizer())
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def engine(vllm: VllmReplica, model_of: ModelOf) -> VllmReplica:
    """The server with the weights of seed 0, whatever the test before left in it."""
    await load(vllm, model_of(True, 0))
    return vllm


async def load(engine: VllmReplica, folder: Path) -> int:
    version = engine.version + 1
    await engine.load_weights(PolicyVersion(version, FolderTicket(folder)))
    return version


def assert_from(folder: Path, prompt: tuple[int, ...], generation: Generation) -> None:
    assert list(generation.logprobs) == pytest.approx(logprobs_of(folder, prompt, generation), abs=1e-3)


async def wait_for_tokens(engine: VllmReplica, asked: Sequence[GenerateRequest], running: int, count: int = 1) -> None:
    """Return when the server has sent so many tokens of each of the requests that run at once."""
    while sum(len(engine.sampled_so_far(one).token_ids) >= count for one in asked) < running:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
async def test_logprobs_are_those_of_transformers_at_temperature_1(
    engine: VllmReplica, model_of: ModelOf, temperature: float
) -> None:
    made = await engine.generate(request(temperature=temperature, top_k=20, top_p=0.9))
    assert len(made.token_ids) == 12
    assert made.finish_reason == "length"
    assert set(made.versions) == {engine.version}
    assert_from(model_of(True, 0), (3, 4, 5, 6), made)


async def test_seeds_give_the_same_tokens_where_prompts_are_computed_in_parts(engine: VllmReplica) -> None:
    """Eight long prompts at once are more than one step takes: a part's token is thrown away, with what was drawn."""
    prompts = [tuple((i * i + row) % 80 for i in range(950)) for row in range(8)]
    wanted = [request(prompt, seed=seed) for seed, prompt in enumerate(prompts)]
    at_once = await asyncio.gather(*map(engine.generate, wanted))
    assert engine.model is not None
    await load(engine, engine.model.folder)  # what was computed is not used again
    assert [made.token_ids for made in at_once] == [(await engine.generate(one)).token_ids for one in wanted]


async def test_a_seed_gives_the_same_tokens_and_a_stop_token_is_the_last(engine: VllmReplica) -> None:
    first, again, other = [await engine.generate(request(seed=seed)) for seed in (1, 1, 2)]
    assert first.token_ids == again.token_ids != other.token_ids
    end = first.token_ids[5]
    stopped = await engine.generate(request(seed=1, stop_token_ids=(end,)))
    assert stopped.token_ids == first.token_ids[: first.token_ids.index(end) + 1]
    assert stopped.finish_reason == "stop"


async def test_a_context_is_filled_to_the_last_token_and_not_beyond(engine: VllmReplica) -> None:
    for length in (1000, 1023):
        made = await engine.generate(request(LONG[:1] * length, max_tokens=2000))
        assert len(made.token_ids) == 1024 - length
    with pytest.raises(EngineError, match="A prompt of 1024 tokens cannot be answered in a context of 1024"):
        await engine.generate(request((1,) * 1024))


@pytest.mark.parametrize("transport", ["folder", "memory", "gloo"])
async def test_new_weights_are_served_and_no_prefix_of_the_old_ones(
    engine: VllmReplica, model_of: ModelOf, transport: str
) -> None:
    old, new = model_of(True, 0), model_of(True, 1)
    assert transport in engine.transports
    for _ in range(2):  # the second time from the cache
        before = await engine.generate(request(LONG, temperature=0.0))
    assert (await engine.ask_metrics())["server_prefix_hits"] > 0
    assert_from(old, LONG, before)
    fingerprint, version = await engine.ask_fingerprint(), engine.version + 1
    weights = load_file(new / "model.safetensors")
    sender = WeightSender("gloo") if transport == "gloo" else None
    try:
        ticket = {"folder": FolderTicket(new), "memory": MemoryTicket(weights)}.get(transport)
        await engine.load_weights(PolicyVersion(version, ticket or sender.offer(version, weights)))  # type: ignore[union-attr]
    finally:
        if sender is not None:
            await asyncio.to_thread(sender.close)
    assert engine.version == version
    assert await engine.ask_fingerprint() != fingerprint
    after = await engine.generate(request(LONG, temperature=0.0))
    assert set(after.versions) == {version}
    assert_from(new, LONG, after)
    assert engine.launch is not None
    assert not os.listdir(engine.launch.weights)


async def test_an_adapter_is_loaded_as_weights(engine: VllmReplica, model_of: ModelOf, tmp_path: Path) -> None:
    adapter, merged, name = tmp_path / "adapter", tmp_path / "merged", "model.layers.0.self_attn.q_proj"
    adapter.mkdir()
    parts = {"A": torch.randn(2, 128), "B": torch.randn(128, 2)}
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 4}))
    save_file(
        {f"base_model.model.{name}.lora_{part}.weight": tensor for part, tensor in parts.items()},
        adapter / "adapter_model.safetensors",
    )
    model: Any = make_model(tied=True)
    weights = load_file(model_of(True, 0) / "model.safetensors")
    weights[f"{name}.weight"] += 2 * parts["B"] @ parts["A"]
    model.load_state_dict(weights, strict=False)
    model.save_pretrained(merged)
    await load(engine, adapter)
    assert_from(merged, (3, 4, 5, 6), await engine.generate(request()))


async def test_running_requests_go_on_through_an_update(engine: VllmReplica, model_of: ModelOf) -> None:
    old = engine.version
    requests = [request((i, 2), max_tokens=LATE) for i in range(8)]
    tasks = [asyncio.ensure_future(engine.generate(asked)) for asked in requests]
    await wait_for_tokens(engine, requests, 8)
    new = await load(engine, model_of(True, 1))
    for task in tasks:
        versions = (await task).versions
        assert set(versions) == {old, new}
        assert list(versions) == sorted(versions)


async def test_weights_of_another_model_are_refused_and_change_nothing(
    engine: VllmReplica, model_of: ModelOf, tmp_path: Path
) -> None:
    before, version = await engine.ask_fingerprint(), engine.version
    make_model(tied=True, intermediate_size=64).save_pretrained(tmp_path / "wide")
    save_file({"model.norm.weight": torch.ones(128)}, tmp_path / "m.safetensors")
    for folder, words in ((tmp_path / "wide", "has another shape"), (tmp_path, "is missing")):
        with pytest.raises(EngineError, match=words):
            await load(engine, folder)
    with pytest.raises(EngineError, match="holds no weights"):
        await load(engine, tmp_path / "nothing")
    assert (await engine.ask_fingerprint(), engine.version) == (before, version)
    await engine.check()


async def test_a_server_that_keeps_old_weights_and_says_200_is_found(
    engine: VllmReplica, model_of: ModelOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = engine.send_folder

    async def send_old(folder: Path, version: int) -> None:
        await send(model_of(True, 0), version)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "send_folder", send_old)
        with pytest.raises(EngineError, match=r"it serves others: model\.embed_tokens\.weight"):
            await load(engine, model_of(True, 1))
    with pytest.raises(EngineError, match="must be started again"):
        await engine.check()
    with pytest.raises(Interrupted, match="must be started again"):
        await engine.generate(request())
    await load(engine, model_of(True, 1))
    await engine.check()


async def test_an_interruption_returns_what_was_sampled(engine: VllmReplica, model_of: ModelOf) -> None:
    requests = [request((i, 2), max_tokens=LATE) for i in range(12)]
    tasks = [asyncio.ensure_future(engine.generate(asked)) for asked in requests]
    await wait_for_tokens(engine, requests, 8)
    await engine.interrupt()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    partials = [result.partial for result in results if isinstance(result, Interrupted)]
    assert len(partials) == 12
    assert sum(bool(partial.token_ids) for partial in partials) == 8
    assert all(len(partial.token_ids) == len(partial.logprobs) == len(partial.versions) for partial in partials)
    await engine.generate(request())


async def test_a_cancelled_request_leaves_the_server(engine: VllmReplica) -> None:
    asked = request(max_tokens=LATE)
    task = asyncio.ensure_future(engine.generate(asked))
    await wait_for_tokens(engine, [asked], 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while (await engine.ask_metrics())["server_running"]:
        pass
    metrics = engine.metrics()
    assert metrics["busy_s"] > 0
    assert 0 < metrics["slot_use"] <= 1


async def test_an_engine_that_is_busy_for_long_is_alive(engine: VllmReplica) -> None:
    """A step over long prompts takes a CPU half a minute; here the engine's process is stopped meanwhile."""
    assert engine.process is not None
    for process in (server := psutil.Process(engine.process.pid)).children(recursive=True):
        process.suspend()
    try:
        for _ in range(2):
            await engine.ask_metrics()
            await asyncio.sleep(0.2)
    finally:
        for process in server.children(recursive=True):
            process.resume()
    assert len((await engine.generate(request())).token_ids) == 12


async def test_a_pause_holds_requests_until_resume_also_over_an_update(engine: VllmReplica, model_of: ModelOf) -> None:
    await engine.pause()
    task = asyncio.ensure_future(engine.generate(request()))
    version = await load(engine, model_of(True, 1))
    assert not task.done()
    await engine.resume()
    made = await task
    assert set(made.versions) == {version}
    assert_from(model_of(True, 1), (3, 4, 5, 6), made)


async def test_a_killed_server_interrupts_and_the_next_model_is_served(engine: VllmReplica, model_of: ModelOf) -> None:
    """The last of the file: it starts the server again, with the model that has an `lm_head` of its own."""
    assert engine.process is not None
    assert engine.launch is not None
    assert engine.process.pid is not None
    folders = engine.launch.folders
    asked = request(max_tokens=LATE)
    task = asyncio.ensure_future(engine.generate(asked))
    await wait_for_tokens(engine, [asked], 1, STREAM_INTERVAL + 1)
    os.kill(engine.process.pid, signal.SIGKILL)
    with pytest.raises(Interrupted, match="was ended by signal 9") as interruption:
        await task
    partial = interruption.value.partial
    assert STREAM_INTERVAL < len(partial.token_ids) < LATE
    assert set(partial.versions) == {engine.version}
    assert_from(model_of(True, 0), (3, 4, 5, 6), partial)
    with pytest.raises(EngineError, match="was ended by signal 9"):
        await engine.check()
    await engine.load_model(model_of(False, 0), byte_tokenizer())
    assert not any(map(os.path.exists, folders))
    assert not glob.glob(f"/dev/shm/*{folders[0].name}*")
    assert engine.version == 0
    made = await engine.generate(request())
    assert set(made.versions) == {0}
    assert_from(model_of(False, 0), (3, 4, 5, 6), made)
    await load(engine, model_of(False, 1))
    assert_from(model_of(False, 1), (3, 4, 5, 6), await engine.generate(request()))
