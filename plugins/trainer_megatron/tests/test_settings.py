"""What cannot be trained, or not so, is a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_setup import SIZES, Surrogate, build_batch, megatron
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen3Config

from ale.errors import ConfigError, TrainerError
from ale.specs.driver import DriverContext
from ale.specs.trainer import LossInput, LossOutput
from ale_testing.function_loss import FunctionLoss
from ale_torch.ranks import World
from ale_trainer_megatron import MegatronTrainer
from ale_trainer_megatron.layout import Layout
from ale_trainer_megatron.model import check_shape

ModelFolder = Callable[[str], Path]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ranks": 3, "tensor_parallel": 2}, "ranks is 3, but tensor_parallel 2 x pipeline_parallel 1 need a multiple"),
        ({"ranks": 2, "sequence_parallel": True}, "sequence_parallel needs tensor_parallel of 2 or more"),
    ],
)
def test_a_layout_that_does_not_fit_its_ranks_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        MegatronTrainer.Config(**settings)


def test_on_a_cluster_the_places_of_the_ranks_are_its_own() -> None:
    class Places:
        device, count = "cuda", 4

    trainer = MegatronTrainer(MegatronTrainer.Config(), DriverContext(ranks=Places()))
    assert (trainer._ranks, trainer._device, trainer.transports) == (4, "cuda", ("nccl", "folder"))
    with pytest.raises(ConfigError, match=r"trainer\.ranks is 2, but cluster\.trainer\.ranks is 4"):
        MegatronTrainer(MegatronTrainer.Config(ranks=2, tensor_parallel=2), DriverContext(ranks=Places()))


@pytest.mark.parametrize(
    ("config", "layout", "sentence"),
    [
        (GPT2Config(), {}, "this one is of the type 'gpt2'; take the trainer 'torch'"),
        (LlamaConfig(**SIZES, attention_bias=True), {}, "no llama with attention_bias"),
        (Qwen3Config(**SIZES, attention_bias=True), {}, "no qwen3 with attention_bias"),
        (LlamaConfig(**SIZES, mlp_bias=True), {}, "without biases in the MLP"),
        (LlamaConfig(**SIZES), {"tensor": 4}, "does not divide the model's 2 KV heads"),
        (LlamaConfig(**SIZES), {"pipeline": 3}, "does not divide the model's 2 layers"),
    ],
)
def test_a_model_that_it_cannot_hold_is_refused(config: Any, layout: dict[str, int], sentence: str) -> None:
    sizes = {"tensor": 1, "pipeline": 1, **layout}
    with pytest.raises(ConfigError, match=sentence):
        check_shape(config, Layout(World(), sizes["tensor"], sizes["pipeline"], sequence_parallel=False))


async def test_what_fails_on_all_ranks_leaves_the_weights_and_the_ranks(
    model_folder: ModelFolder, tmp_path: Path
) -> None:
    def infinite(inputs: LossInput) -> LossOutput:
        return LossOutput(inputs.logprobs.sum() * float("inf"), {})

    def steep(inputs: LossInput) -> LossOutput:
        # Its value is finite, and its gradient is not.
        return LossOutput((inputs.logprobs - inputs.logprobs.detach()).abs().sqrt().sum(), {})

    batch = build_batch()
    async with megatron(model_folder("qwen2"), ranks=2, tensor_parallel=2) as trainer:
        before = await trainer.logprobs(batch)
        with pytest.raises(ConfigError, match=r"no config\.json"):
            await trainer.load(tmp_path)
        with pytest.raises(ConfigError, match=r"set trainer\.sequence_parallel to true"):
            await trainer.load(model_folder("qwen3_moe"))
        with pytest.raises(TrainerError, match="no reference policy yet"):
            await trainer.logprobs(batch, "reference")
        with pytest.raises(TrainerError, match="highest token id is 301"):
            await trainer.logprobs(replace(batch, token_ids=batch.token_ids + 1))
        with pytest.raises(TrainerError, match=r"The loss is -?inf; the weights were left as they are"):
            await trainer.update(batch, FunctionLoss(infinite))
        with pytest.raises(TrainerError, match="The gradient norm is nan; the weights were left as they are"):
            await trainer.update(batch, FunctionLoss(steep))
        assert (await trainer.logprobs(batch) == before).all()
        totals = await trainer.update(batch, Surrogate())
        assert totals["loss"] == totals["loss"]


async def test_scaled_positions_that_are_not_known_are_refused(tmp_path: Path) -> None:
    auto: Any = AutoModelForCausalLM
    scaled = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
    torch.manual_seed(0)
    auto.from_config(LlamaConfig(**SIZES, rope_parameters=scaled)).save_pretrained(str(tmp_path / "yarn"))
    async with megatron() as trainer:
        with pytest.raises(ConfigError, match="of the type 'yarn'; take the trainer 'torch'"):
            await trainer.load(tmp_path / "yarn")
