"""A small decoder from nothing, as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

from ale.specs.trainer import ScratchModel


def write_scratch_model(model: ScratchModel, folder: Path, seed: int) -> None:
    """Random weights in the shape of `model`, next to the tokenizer that `folder` already holds."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    intermediate = model.intermediate_size or -(-model.hidden_size * 8 // 3 // 16) * 16
    config_class = {"qwen2": Qwen2Config, "llama": LlamaConfig}[model.architecture]
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=model.hidden_size,
        intermediate_size=intermediate,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        max_position_embeddings=model.max_length,
        tie_word_embeddings=True,
        # The library's 0.02 suits widths in the thousands; a narrow model that starts so small takes several times
        # as many steps to learn to copy.
        initializer_range=0.75 * model.hidden_size**-0.5,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(str(folder))
