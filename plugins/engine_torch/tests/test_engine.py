"""The engine's life: sessions, weights, cancellation, pausing, failing, closing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ale.errors import ConfigError, EngineError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, MemoryTicket, PolicyVersion
from ale_engine_torch import TorchEngine

from .conftest import request, surprise


async def test_a_session_computes_only_what_is_new(engine: TorchEngine) -> None:
    history = list(range(20))
    first = await engine.generate(request(history, session="s"))
    await engine.generate(request([*history, *first.token_ids, 3, 4], session="s"))
    assert engine.metrics()["cached_prompt_tokens"] == 20 + len(first.token_ids) - 1


async def test_new_weights_void_the_cache_and_mark_the_tokens(
    engine: TorchEngine, folder: Path, tmp_path: Path
) -> None:
    history = list(range(20))
    await engine.generate(request(history, session="s"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    await engine.load_weights(PolicyVersion(4, MemoryTicket(model.state_dict())))
    generation = await engine.generate(request([*history, 1], session="s"))
    assert engine.version == 4
    assert set(generation.versions) == {4}
    model.save_pretrained(tmp_path / "new")
    assert surprise(tmp_path / "new", [*history, 1], generation) < 1e-4


async def test_weights_may_change_in_the_middle_of_a_generation(
    engine: TorchEngine, in_step: None, folder: Path
) -> None:
    weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    running = asyncio.create_task(engine.generate(request([1, 2, 3], max_tokens=200)))
    while engine.metrics().get("sampled_tokens", 0) < 5:  # noqa: ASYNC110 - a counter, not an event
        await asyncio.sleep(0.001)
    await engine.load_weights(PolicyVersion(1, MemoryTicket(weights)))
    versions = (await running).versions
    assert set(versions) == {0, 1}
    assert list(versions) == sorted(versions)


async def test_a_seed_gives_the_same_tokens_whatever_else_runs(engine: TorchEngine) -> None:
    alone = await engine.generate(request([5, 6, 7], seed=3, session="a"))
    crowd = await asyncio.gather(
        *(engine.generate(request([5, 6, 7 + i], seed=3 + i, session=f"b{i}")) for i in range(5))
    )
    assert crowd[0].token_ids == alone.token_ids
    assert len({g.token_ids for g in crowd}) > 1


async def test_greedy_stop_tokens_and_limits(engine: TorchEngine) -> None:
    greedy = await engine.generate(request([5, 6], temperature=0.0))
    assert greedy.token_ids == (await engine.generate(request([5, 6], seed=9, temperature=0.0))).token_ids
    assert greedy.finish_reason == "length"
    stop = greedy.token_ids[2]
    cut = await engine.generate(request([5, 6], temperature=0.0, stop_token_ids=(stop,)))
    first = greedy.token_ids.index(stop)
    assert (cut.token_ids, cut.finish_reason) == (greedy.token_ids[: first + 1], "stop")
    long = await engine.generate(request([1] * 250, max_tokens=99))
    assert len(long.token_ids) == 6, "the context ends the response"


async def test_what_cannot_be_served_is_a_sentence(engine: TorchEngine) -> None:
    with pytest.raises(EngineError, match="cannot be answered in a context of 256"):
        await engine.generate(request([1] * 256))
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(request([1]))


async def test_cancelling_frees_the_place(engine: TorchEngine) -> None:
    tasks = [asyncio.create_task(engine.generate(request([i, 2], max_tokens=250, session=f"{i}"))) for i in range(6)]
    await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    answer = await asyncio.wait_for(engine.generate(request([1, 2], max_tokens=3)), timeout=60)
    assert len(answer.token_ids) == 3


async def test_pause_holds_and_resume_goes_on(engine: TorchEngine) -> None:
    await engine.pause()
    waiting = asyncio.create_task(engine.generate(request([1, 2], max_tokens=2)))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await engine.resume()
    assert len((await asyncio.wait_for(waiting, 60)).token_ids) == 2


async def test_closing_fails_what_waits(folder: Path) -> None:
    engine = TorchEngine(TorchEngine.Config(max_batch=2, threads=1), DriverContext())
    await engine.start()
    await engine.load_model(folder, byte_tokenizer())
    await engine.pause()
    waiting = asyncio.create_task(engine.generate(request([1, 2])))
    await asyncio.sleep(0.05)
    await engine.close()
    with pytest.raises(EngineError, match="was closed"):
        await waiting


async def test_without_a_model_there_is_a_sentence(tmp_path: Path) -> None:
    async with TorchEngine(TorchEngine.Config(threads=1), DriverContext()) as engine:
        with pytest.raises(EngineError, match="no model yet"):
            await engine.generate(request([1]))
        with pytest.raises(ConfigError, match="holds no model"):
            await engine.load_model(tmp_path, byte_tokenizer())


async def test_weights_of_another_model_are_refused_and_change_nothing(engine: TorchEngine, folder: Path) -> None:
    before = await engine.generate(request([1, 2, 3]))
    good = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    halves = {name: w * 0.5 for name, w in good.items()}
    for weights, said in (
        (
            {n: w for n, w in halves.items() if not n.endswith("layers.1.mlp.down_proj.weight")},
            "lack 'model.layers.1.mlp",
        ),
        ({**halves, "model.norm.weight": torch.ones(31)}, "different models"),
    ):
        with pytest.raises(EngineError, match=said):
            await engine.load_weights(PolicyVersion(9, MemoryTicket(weights)))
    assert engine.version == 0
    assert await engine.generate(request([1, 2, 3])) == before


async def test_weights_come_from_a_folder_where_memory_holds_none(
    engine: TorchEngine, folder: Path, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.norm.weight.mul_(0.5)
    model.save_pretrained(tmp_path)
    await engine.load_weights(PolicyVersion(2, FolderTicket(tmp_path)))
    assert surprise(tmp_path, [1, 2, 3], await engine.generate(request([1, 2, 3]))) < 1e-4
    ticket = SimpleNamespace(transport="ipc")
    with pytest.raises(EngineError, match="takes weights by memory or folder; policy version 3 comes by 'ipc'"):
        await engine.load_weights(PolicyVersion(3, ticket))  # type: ignore[arg-type]


async def test_a_step_that_fails_fails_its_requests_and_the_engine_goes_on(
    engine: TorchEngine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine._scheduler is not None
    decoder: Any = engine._scheduler.decoder
    decode, steps = decoder.decode, iter(range(3))

    def stumble(*args: Any) -> Any:
        if next(steps, None) == 2:
            raise RuntimeError("out of luck")
        return decode(*args)

    monkeypatch.setattr(decoder, "decode", stumble)
    calls = (engine.generate(request([i, 2, 3], session=f"{i}")) for i in range(9))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(r, EngineError) and "failed in a step: out of luck" in str(r) for r in results)
    generation = await engine.generate(request([1, 2, 3], session="1"))
    assert surprise(folder, [1, 2, 3], generation) < 1e-4


async def test_broken_weights_are_said_to_be_broken(engine: TorchEngine, folder: Path) -> None:
    weights = {n: w * float("nan") for n, w in AutoModelForCausalLM.from_pretrained(folder).state_dict().items()}
    await engine.load_weights(PolicyVersion(1, MemoryTicket(weights)))
    with pytest.raises(EngineError, match=r"logits are NaN: its weights are broken"):
        await engine.generate(request([1, 2, 3]))


async def test_another_model_fails_what_the_old_one_was_generating(
    engine: TorchEngine, in_step: None, folder: Path
) -> None:
    running = asyncio.create_task(engine.generate(request([1, 2], max_tokens=250)))
    await asyncio.sleep(0)
    await engine.load_model(folder, byte_tokenizer())
    with pytest.raises(EngineError, match="was replaced"):
        await asyncio.wait_for(running, 60)
    assert len((await engine.generate(request([1, 2]))).token_ids) == 12


async def test_an_idle_engine_burns_no_cpu(engine: TorchEngine) -> None:
    await engine.generate(request([1, 2]))
    assert engine._thread is not None
    assert engine._thread.ident is not None
    clock = time.pthread_getcpuclockid(engine._thread.ident)  # other threads of the process may have work
    began = time.clock_gettime(clock)
    await asyncio.sleep(0.5)
    assert time.clock_gettime(clock) - began < 0.1


async def test_counters_survive_another_model_and_closing(engine: TorchEngine, folder: Path) -> None:
    await engine.generate(request([1, 2]))
    await engine.load_model(folder, byte_tokenizer())
    await engine.generate(request([1, 2]))
    await engine.close()
    metrics = engine.metrics()
    assert (metrics["requests"], metrics["prompt_tokens"], metrics["sampled_tokens"]) == (2, 4, 24)
    assert metrics["busy_s"] == metrics["prefill_s"] + metrics["decode_s"] > 0


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
async def test_a_gpu_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"engine\.device"):
        await TorchEngine(TorchEngine.Config(device="cuda"), DriverContext()).start()


async def test_bfloat16_samples_too(folder_of: Callable[[str], Path]) -> None:
    async with TorchEngine(TorchEngine.Config(max_batch=2, threads=1, dtype="bfloat16"), DriverContext()) as engine:
        await engine.load_model(folder_of("llama"), byte_tokenizer())
        assert len((await engine.generate(request([1, 2, 3]))).token_ids) == 12
