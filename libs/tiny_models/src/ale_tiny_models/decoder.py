"""This module makes a small decoder with random weights, and a tokenizer that is trained on the run's own texts.

The settings can be read without torch, which `weights.py` imports when a model is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from ale.session.tokenizer import train_tokenizer
from ale.specs.package_sections import ScratchModel


class TinyDecoder(ScratchModel):
    """The keys of `model.scratch`."""

    architecture: Literal["qwen2", "llama"] = Field("qwen2", description="Architecture of the decoder: llama or qwen2.")
    hidden_size: int = Field(96, gt=0, description="Hidden size.")
    layers: int = Field(4, gt=0, description="Decoder layers.")
    heads: int = Field(4, gt=0, description="Attention heads.")
    kv_heads: int = Field(2, gt=0, description="Key/value heads.")
    intermediate_size: int | None = Field(
        None,
        gt=0,
        description="Hidden size of the feed-forward layers; null: 8/3 of hidden_size, rounded up to a multiple of 16.",
    )
    vocab_size: int = Field(
        640, ge=300, description="Tokens in the vocabulary of the byte-level BPE, special tokens included."
    )

    @model_validator(mode="after")
    def _width_and_heads_go_together(self) -> TinyDecoder:
        step = 2 * self.heads
        if self.hidden_size % step:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of twice heads ({self.heads}): each head gets an "
                f"equal, even share of the width; try {-(-self.hidden_size // step) * step}"
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads ({self.kv_heads}) must divide heads ({self.heads}): each key/value head serves the same "
                "number of attention heads"
            )
        return self

    def write(self, folder: Path, texts: Sequence[str], seed: int) -> None:
        """See `ScratchModel.write`."""
        from ale_tiny_models.weights import write_weights

        folder.mkdir(parents=True, exist_ok=True)
        train_tokenizer(texts, self.vocab_size).save(folder)
        shape = {
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size or -(-self.hidden_size * 8 // 3 // 16) * 16,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": self.max_length,
        }
        write_weights(self.architecture, shape, folder, seed)
