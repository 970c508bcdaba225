"""A folder is read as transformers reads it, also where its files say more than one thing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ale.errors import EngineError
from ale_engine_torch.load_decoder import load_decoder, read_weights

from .conftest import truth

TOKENS = [5, 9, 33, 70, 41, 12]


def last_logits(folder: Path) -> torch.Tensor:
    return load_decoder(folder, 2, 64, torch.device("cpu"), "float32").prefill([0], [TOKENS], [0])[0]


def test_a_head_of_its_own_counts_although_the_configuration_ties_it(folder: Path, tmp_path: Path) -> None:
    own = shutil.copytree(folder, tmp_path / "own")
    weights = load_file(own / "model.safetensors")
    tied = dict(weights)
    weights["lm_head.weight"] = torch.randn_like(weights["model.embed_tokens.weight"])
    save_file(weights, own / "model.safetensors", {"format": "pt"})
    assert json.loads((own / "config.json").read_text())["tie_word_embeddings"]
    with torch.inference_mode():
        wanted = truth(own)(torch.tensor([TOKENS])).logits[0, -1]
    torch.testing.assert_close(last_logits(own), wanted, atol=1e-4, rtol=1e-4)
    decoder = load_decoder(folder, 2, 64, torch.device("cpu"), "float32")
    with pytest.raises(EngineError, match=r"have an 'lm_head\.weight' that is not 'model\.embed_tokens\.weight'"):
        decoder.load(weights)
    decoder.load(tied | {"lm_head.weight": tied["model.embed_tokens.weight"].clone()})


def test_only_the_shards_that_the_index_names_are_read(folder: Path, tmp_path: Path) -> None:
    sharded = shutil.copytree(folder, tmp_path / "sharded")
    weights = load_file(sharded / "model.safetensors")
    (sharded / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {"model-00001.safetensors": names[::2], "model-00002.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: weights[name] for name in part}, sharded / file, {"format": "pt"})
    save_file({name: weights[name] * 2 for name in names}, sharded / "older.safetensors", {"format": "pt"})
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    read = read_weights(sharded)
    assert all(torch.equal(read[name], weights[name]) for name in names)
    torch.testing.assert_close(last_logits(sharded), last_logits(folder))


def test_an_index_that_cannot_be_read_is_a_sentence(folder: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "model.safetensors").rename(broken / "part.safetensors")
    for text in ("{", "[]", "{}", '{"weight_map": {"a": "gone.safetensors"}}'):
        (broken / "model.safetensors.index.json").write_text(text)
        with pytest.raises(EngineError, match="cannot be read"):
            read_weights(broken)
