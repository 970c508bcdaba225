"""These tests check models from nothing: the folder that a seed gives, and shapes that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from ale_train.config.scratch_model import ScratchModel
from ale_train.models.scratch import write_scratch_model

TEXTS = ["ls -la | wc -l", "an agent acts", '{"name": "shell"}'] * 4


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_a_model_is_a_folder_made_from_the_seed(tmp_path: Path, architecture: str) -> None:
    shape = ScratchModel.model_validate(
        {"architecture": architecture, "hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 1, "vocab_size": 320}
    )
    before = torch.random.get_rng_state()
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        write_scratch_model(shape, tmp_path / name, TEXTS, seed)
    assert torch.equal(torch.random.get_rng_state(), before)
    one, same, other = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("one", "same", "other"))
    assert one == same, "the same seed must make the same weights"
    assert one != other, "another seed must make other weights"
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    tokens = len(PreTrainedTokenizerFast.from_pretrained(str(tmp_path / "one")))
    assert (config["vocab_size"], config["model_type"], config["tie_word_embeddings"]) == (tokens, architecture, True)
    assert config["rope_parameters"]["rope_theta"] == 10000.0
    assert load_file(tmp_path / "one" / "model.safetensors")["model.embed_tokens.weight"].dtype == torch.float32
    AutoModelForCausalLM.from_pretrained(str(tmp_path / "one"))


@pytest.mark.parametrize(("heads", "kv_heads", "says"), [(5, 1, "hidden_size .32."), (4, 3, "kv_heads .3.")])
def test_a_shape_that_does_not_fit_is_a_sentence(heads: int, kv_heads: int, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ScratchModel(hidden_size=32, heads=heads, kv_heads=kv_heads)
