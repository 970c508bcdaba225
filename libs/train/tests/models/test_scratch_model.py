"""These tests check models from nothing: the folder that a seed gives, and shapes that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from ale.messages import Message
from ale.session.tokenizer import ChatTokenizer
from ale_train.config.scratch_model import ScratchModel
from ale_train.models.scratch import write_scratch_model

TEXTS = [
    "ls -la | wc -l",
    "an agent acts, it doesn't wait 12 s",
    '\n{"name": "shell", "arguments": {"cmd": "cat a.txt"}}',
] * 4
PIECES = (
    "agent",
    "ls -la",
    " an",
    ".txt",
    "..",
    "12",
    " ",
    "\n\n",
    "\r\n",
    "\t",
    "I'll",
    "caf\u00e9",
    "e\u0301",
    "\u4f60",
    "<|im_end|>",
    *TEXTS,
)


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
    assert config["rope_parameters"]["rope_theta"] == config["rope_theta"] == 10000.0
    assert load_file(tmp_path / "one" / "model.safetensors")["model.embed_tokens.weight"].dtype == torch.float32
    AutoModelForCausalLM.from_pretrained(str(tmp_path / "one"))


@pytest.mark.parametrize(("heads", "kv_heads", "says"), [(5, 1, "hidden_size .32."), (4, 3, "kv_heads .3.")])
def test_a_shape_that_does_not_fit_is_a_sentence(heads: int, kv_heads: int, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ScratchModel(hidden_size=32, heads=heads, kv_heads=kv_heads)


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_transformers_reads_the_tokenizer_as_ale_does(tmp_path: Path, architecture: str) -> None:
    shape = ScratchModel.model_validate(
        {"architecture": architecture, "hidden_size": 32, "layers": 1, "vocab_size": 400}
    )
    write_scratch_model(shape, tmp_path, TEXTS, 1)
    ours, theirs = ChatTokenizer.load(tmp_path), AutoTokenizer.from_pretrained(str(tmp_path))

    @settings(max_examples=200)
    @given(st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=12).map("".join))
    def same(text: str) -> None:
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids

    same()
    prompt = ours.encode(ours.render([Message("user", TEXTS[1])], prompt=True))
    talk = [{"role": "user", "content": TEXTS[1]}]
    assert theirs.apply_chat_template(talk, add_generation_prompt=True, return_dict=False) == prompt
    assert theirs.decode(prompt) == ours.decode(prompt)
    assert (theirs.eos_token_id, theirs.pad_token_id) == (ours.stop_token_ids[0], 0)
    # Releases of transformers before 5 know no TokenizersBackend.
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
