"""A small decoder from nothing, as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

from ale.errors import ConfigError
from ale.specs.trainer import ScratchModel
from ale_trainer_torch.folder import quiet


def write_scratch_model(model: ScratchModel, folder: Path, seed: int) -> None:
    """Random weights in the shape of `model`, next to the tokenizer that `folder` already holds.

    The same seed gives the same weights; the random state of the caller is left as it was. Raises `ConfigError`.
    """
    check_shape(model)
    try:
        # Not AutoTokenizer: for some model types it replaces what tokenizer.json says by its own idea of it.
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # the library raises many kinds; whichever it is, the folder is what is wrong
        raise ConfigError(
            f"A model cannot be made in {folder}: it holds no tokenizer (tokenizer.json, tokenizer_config.json), "
            "whose vocabulary the model needs."
        ) from error
    config_class = {"qwen2": Qwen2Config, "llama": LlamaConfig}[model.architecture]
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size or -(-model.hidden_size * 8 // 3 // 16) * 16,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        max_position_embeddings=model.max_length,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        # The library's 0.02 suits widths in the thousands; a narrow model that starts so small takes several times
        # as many steps to learn to copy.
        initializer_range=0.75 * model.hidden_size**-0.5,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    auto: Any = AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        auto.from_config(config, dtype=torch.float32).save_pretrained(str(folder))


def check_shape(model: ScratchModel) -> None:
    """Raises `ConfigError` where width and heads do not go together."""
    step = 2 * model.heads
    if model.hidden_size % step:
        raise ConfigError(
            f"model.scratch.hidden_size ({model.hidden_size}) must be a multiple of twice model.scratch.heads "
            f"({model.heads}): each head gets an equal, even share of the width. "
            f"Try {-(-model.hidden_size // step) * step}."
        )
    if model.heads % model.kv_heads:
        raise ConfigError(
            f"model.scratch.kv_heads ({model.kv_heads}) must divide model.scratch.heads ({model.heads}): "
            "each key/value head serves the same number of attention heads."
        )
