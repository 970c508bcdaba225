"""The engine serves what transformers computes from the same folder, or refuses the folder when it is loaded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, RwkvConfig

from ale.errors import ConfigError, EngineError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, GenerateRequest, MemoryTicket, PolicyVersion, Sampling
from ale_engine_torch import TorchEngine
from ale_testing.model_shapes import LONG, SHAPES, SWITCH, VOCABULARY, true_logprobs, write_model

PROMPTS = (5, 20, LONG, 150)
EXACT = 1e-4


@asynccontextmanager
async def loaded(folder: Path, **settings: object) -> AsyncIterator[TorchEngine]:
    config = TorchEngine.Config.model_validate({"threads": 1, "max_batch": 4, **settings})
    async with TorchEngine(config, DriverContext(seed=1)) as engine:
        await engine.load_model(folder, byte_tokenizer())
        yield engine


async def far(engine: TorchEngine, folder: Path) -> float:
    """The largest difference from transformers, over prompts of many lengths that fit into the context."""
    worst = 0.0
    for length in PROMPTS:
        if length < engine.max_context:
            prompt = np.random.default_rng(length).integers(3, VOCABULARY, length).tolist()
            made = await engine.generate(GenerateRequest(tuple(prompt), Sampling(max_tokens=20, seed=1)))
            wanted = true_logprobs(folder, [*prompt, *made.token_ids])[length - 1 :]
            worst = max(worst, float(np.abs(np.array(wanted) - np.array(made.logprobs)).max()))
    return worst


@pytest.mark.parametrize("name", SHAPES)
async def test_a_folder_is_served_as_transformers_computes_it_also_after_updates(name: str, tmp_path: Path) -> None:
    first, second, third = (write_model(name, tmp_path / str(seed), seed) for seed in range(3))
    async with loaded(first, max_context=SWITCH if name == "longrope" else 256) as engine:
        assert await far(engine, first) < EXACT
        await engine.load_weights(PolicyVersion(1, FolderTicket(second)))
        assert await far(engine, second) < EXACT
        for number, weights in enumerate(
            (load_file(third / "model.safetensors"), AutoModelForCausalLM.from_pretrained(first).state_dict())
        ):
            await engine.load_weights(PolicyVersion(2 + number, MemoryTicket(weights)))
            assert await far(engine, (third, first)[number]) < EXACT


async def test_positions_that_change_with_the_length_are_refused_where_the_context_reaches_them(tmp_path: Path) -> None:
    folder = write_model("longrope", tmp_path / "model")
    with pytest.raises(ConfigError, match=r"'longrope'.*longer than 32 tokens.*Set engine\.max_context to at most 32"):
        async with loaded(folder):
            pass


async def test_the_context_ends_before_dynamic_positions_change(tmp_path: Path) -> None:
    async with loaded(write_model("dynamic", tmp_path / "model")) as engine:
        assert engine.max_context == SWITCH


async def test_a_model_that_cannot_be_sampled_with_a_cache_is_refused(tmp_path: Path) -> None:
    config = RwkvConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot sample from the model in .* token by token: it takes no cache"):
        async with loaded(tmp_path):
            pass


async def test_weights_of_another_model_change_nothing(tmp_path: Path) -> None:
    folder, other = write_model("experts", tmp_path / "one"), write_model("experts of mixtral", tmp_path / "other")
    async with loaded(folder) as engine:
        whole = load_file(folder / "model.safetensors")
        for weights, why in (
            (load_file(other / "model.safetensors"), "is unknown"),
            ({name: tensor for name, tensor in whole.items() if "experts.3." not in name}, ""),
            (whole | {"model.norm.weight": whole["model.norm.weight"][:5]}, "is of another shape"),
        ):
            with pytest.raises(EngineError, match=f"not of the model that was loaded.*{why}"):
                await engine.load_weights(PolicyVersion(1, MemoryTicket(weights)))
            assert await far(engine, folder) < EXACT
