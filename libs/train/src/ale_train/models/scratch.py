"""Makes a small decoder with random weights, and a tokenizer that is trained on the run's own texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ale.errors import ConfigError
from ale.session.tokenizer import train_tokenizer
from ale_train.config.scratch_model import ScratchModel


def write_scratch_model(scratch: ScratchModel, folder: Path, texts: Sequence[str], seed: int) -> None:
    """Write a Hugging Face folder: a tokenizer trained on `texts`, and a model with random weights that depend on the
    seed alone. Raises `ConfigError` if that is impossible."""
    try:
        from ale_torch.tiny_models import write_weights
    except ImportError as error:
        raise ConfigError(
            f"model.scratch: a model is made from nothing with torch, which cannot be imported ({error}); "
            "`pip install ale-torch` brings it."
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    train_tokenizer(texts, scratch.vocab_size, scratch.architecture).save(folder)
    shape = {
        "hidden_size": scratch.hidden_size,
        "intermediate_size": scratch.intermediate_size or -(-scratch.hidden_size * 8 // 3 // 16) * 16,
        "num_hidden_layers": scratch.layers,
        "num_attention_heads": scratch.heads,
        "num_key_value_heads": scratch.kv_heads,
        "max_position_embeddings": scratch.max_length,
    }
    write_weights(scratch.architecture, shape, folder, seed)
