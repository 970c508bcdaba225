"""Experts that come as one tensor for a layer are loaded by the names of the model's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from ale.errors import EngineError
from ale_engines.server.model_folder import ModelFolder
from ale_engines.weights.expert_names import use_model_names
from ale_engines.weights.tensor_files import read_folder

SIZES: dict[str, Any] = {
    "vocab_size": 20, "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "num_experts": 3, "num_local_experts": 3, "num_experts_per_tok": 2,
    "moe_intermediate_size": 6,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
async def test_the_names_of_a_state_dict_become_those_of_the_folder(kind: str, tmp_path: Path) -> None:
    auto: Any = AutoModelForCausalLM
    config: Any = AutoConfig
    model = auto.from_config(config.for_model(kind, **SIZES))
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "published").mkdir()
    save_file(dict(model.state_dict()), tmp_path / "published" / "model.safetensors")
    wanted = read_folder(tmp_path / "model")
    assert read_folder(tmp_path / "published").keys() != wanted.keys()
    async with use_model_names(tmp_path / "published", wanted.keys(), tmp_path) as folder:
        found = read_folder(folder)
        assert found.keys() == wanted.keys()
        assert all((found[name].values == tensor.values).all() for name, tensor in wanted.items())
    assert not folder.exists()
    async with use_model_names(tmp_path / "model", wanted.keys(), tmp_path) as folder:
        assert folder == tmp_path / "model"


def test_experts_by_names_that_cannot_be_read_are_refused_with_what_to_do() -> None:
    model = ModelFolder(Path("moe"), {}, {"layer.experts.0.up_proj.weight": (2, 3)}, 0)
    with pytest.raises(
        EngineError, match=r"'layer\.experts\.0\.up_proj\.weight' is missing\. They have the experts by"
    ):
        model.check_same({"layer.experts.w13": (1, 4, 3)}, "The tensors")
