"""The keys of `model.scratch`: the shape of a small decoder made from nothing (`ale_train.models.scratch`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from ale.specs.choice import Section


class ScratchModel(Section):
    """A small decoder with random weights."""

    max_length: int = Field(1024, gt=0, description="Longest context, in tokens.")
    architecture: Literal["llama", "qwen2"] = Field(
        "llama", description="Architecture of the decoder: llama or qwen2 (whose tokenizer splits text as Qwen's does)."
    )
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
    def _width_and_heads_go_together(self) -> ScratchModel:
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
