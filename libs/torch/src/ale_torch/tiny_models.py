"""This module writes random weights into a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

from ale_torch.training.model_folder import save_pretrained


def write_weights(architecture: str, shape: Mapping[str, int], folder: Path, seed: int) -> None:
    """Write the model next to the tokenizer that `folder` already holds; `shape` has the library's names of sizes.

    The same seed gives the same weights; the caller's random state does not change.
    """
    # AutoTokenizer is not used, because for some model types it replaces settings of tokenizer.json by its own.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    config_class = {"qwen2": Qwen2Config, "llama": LlamaConfig}[architecture]
    config = config_class(
        vocab_size=len(tokenizer),
        **shape,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        # The library's default of 0.02 suits widths in the thousands; a narrow model with such small initial weights
        # needs several times as many steps to learn to copy.
        initializer_range=0.75 * shape["hidden_size"] ** -0.5,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    auto: Any = AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto.from_config(config, dtype=torch.float32)
    save_pretrained(folder, model, model.state_dict())
