"""Engines of several kinds are one pool, if they can serve the same conversations with the same weights."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ale.errors import ConfigError
from ale.registry.drivers import build_driver
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, GenerateRequest, PolicyVersion, Sampling
from ale_engine_torch import TorchEngine
from ale_engines.mixed import MixedEngine
from ale_testing.tiny_model import write_tiny_model

TORCH = {"use": "torch", "threads": 1}
VLLM, SGLANG = ({"use": use, "url": f"http://{use}:8000"} for use in ("vllm", "sglang"))
SCRIPTED = {"use": "scripted", "answers": ["yes"]}


def mixed(*parts: Any) -> MixedEngine:
    built = build_driver("engine", PluginChoice(use="mixed", settings={"parts": [*parts]}), DriverContext(seed=1))
    assert isinstance(built, MixedEngine)
    return built


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ([], r"engine\.parts: must list at least one engine"),
        ([TORCH, {"use": "toch"}], r"engine\.parts\.1: there is no engine plugin 'toch'\. Did you mean 'torch'\?"),
        ([TORCH, {**VLLM, "replica": 2}], r"engine\.parts\.1\.replica: there is no such key\. Did you mean 'replicas'"),
        (
            [TORCH, SCRIPTED],
            r"engine\.parts: the parts have no transport of new weights in common \('torch' takes memory or folder; "
            r"'scripted' takes none\); take parts that have one\.",
        ),
        (
            [TORCH, {**TORCH, "max_context": 512}],
            r"engine\.parts: max_context is 2048 in parts\.0, 512 in parts\.1: a conversation may go on at any of "
            "them, so set it to one number in all",
        ),
        ([VLLM, SGLANG, {"use": "vllm"}], r"engine\.parts\.2: 'vllm' is a part already, .* \(replicas, or a list"),
        (
            [{"use": "upstream", "url": "http://up/v1", "model": "m"}, TORCH],
            r"engine\.parts\.0: 'upstream' answers with messages of another model",
        ),
    ],
)
def test_parts_that_cannot_serve_the_same_run_are_refused(parts: list[Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        mixed(*parts)


def test_vllm_beside_sglang_has_the_transports_of_both() -> None:
    urls = ["http://one:8000", "http://two:8000"]
    engine = mixed({**VLLM, "url": urls}, SGLANG, {**TORCH, "max_batch": 5}, TORCH)
    assert [replica.name for replica in engine.replicas] == ["vllm 0", "vllm 1", "sglang 0", "torch 0", "torch 1"]
    assert [replica.slots for replica in engine.replicas] == [64, 64, 64, 5, 64]
    assert engine.transports == ("folder",)
    assert engine.provides(engine.config) == {"real_tokens"}


def test_on_a_cluster_the_parts_take_turns_each_as_often_as_it_has_replicas() -> None:
    engine = mixed({"use": "vllm", "replicas": 2}, {"use": "sglang"})
    names = [engine.make_replica(number).name for number in range(7)]
    assert names == ["vllm 0", "vllm 1", "sglang 0", "vllm 2", "vllm 3", "sglang 1", "vllm 4"]


async def test_all_parts_sample_with_the_current_weights(tmp_path: Path) -> None:
    folders = [tmp_path / "0", tmp_path / "1"]
    tokenizer, _ = (write_tiny_model(folder, seed) for seed, folder in enumerate(folders))
    requests = [GenerateRequest((5 + i, 11), Sampling(max_tokens=9, seed=i), session=f"s{i}") for i in range(6)]
    async with TorchEngine(TorchEngine.Config(threads=1), DriverContext()) as alone:
        await alone.load_model(folders[1], tokenizer)
        wanted = [await alone.generate(request) for request in requests]
    async with mixed(TORCH, {**TORCH, "dtype": "bfloat16", "max_batch": 3}) as engine:
        assert engine.capabilities == {"real_tokens"}
        await engine.load_model(folders[0], tokenizer)
        await engine.load_weights(PolicyVersion(4, FolderTicket(folders[1])))
        found = await asyncio.gather(*map(engine.generate, requests))
        by_part = [engine.metrics()[f"torch {number}/sampled_tokens"] for number in (0, 1)]
    assert all(count >= 9 for count in by_part), "both have sampled"
    assert {version for generation in found for version in generation.versions} == {4}
    exact = [one.token_ids == other.token_ids for one, other in zip(found, wanted, strict=True)]
    assert exact.count(True) >= by_part[0] / 9, "those of the part that computes as `alone` does"
