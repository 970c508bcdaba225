"""Loads a decoder from a Hugging Face folder: the fast one if it knows the architecture, else the general one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ale.errors import ConfigError, EngineError
from ale_engine_torch.fused_weights import has_own_head
from ale_engine_torch.llama_decoder import LlamaDecoder
from ale_engine_torch.model_shape import fast_shape
from ale_engine_torch.precision import DtypeName, Quantization, choose_dtype
from ale_engine_torch.transformers_decoder import TransformersDecoder


class Decoder(Protocol):
    """The interface of a model for the scheduler. Rows are slots of its cache; only the engine's thread calls it."""

    max_context: int
    prefix_reuse: bool
    """Whether a slot's first positions may be kept while what follows them is replaced."""

    def load(self, weights: dict[str, Tensor]) -> None:
        """Take over weights by their Hugging Face names. Raises `EngineError`, with nothing changed."""

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange at least the first `length` positions of two slots."""

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Give `target` the first `length` positions of `source`."""

    def decode(self, tokens: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> Tensor:
        """One token [n] at its position [n] for each of the slots `0..n`; logits [n, vocab] float32."""

    def prefill(self, slots: Sequence[int], tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Write `tokens[i]` into slot `slots[i]` from position `starts[i]` on; logits [B, vocab] float32 of each last
        token."""


def load_decoder(
    folder: Path,
    slots: int,
    max_context: int,
    device: torch.device,
    dtype_name: DtypeName,
    quantization: Quantization | None = None,
) -> Decoder:
    """Load the model in a folder. Raises `ConfigError` where the folder holds none, or one that cannot be quantized."""
    config = _read_config(folder)
    limit = config.get("max_position_embeddings") or config.get("n_positions") or max_context
    context = min(max_context, int(limit))
    dtype = choose_dtype(config, device, dtype_name)
    shape = fast_shape(config)
    if shape is None or not list(folder.glob("*.safetensors")):
        if quantization is not None:
            raise ConfigError(
                f"engine.quantization: the model in {folder} cannot be quantized by the engine 'torch', which does so "
                "for Llama, Qwen2 and Qwen3 models in safetensors; leave it out."
            )
        try:
            return TransformersDecoder(folder, slots, context, device, dtype)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(
                f"The folder {folder} holds no causal language model that can be loaded: {reason}"
            ) from error
    try:
        weights = read_weights(folder)
        if shape.tied and has_own_head(weights):  # as transformers does, whatever config.json says
            shape = replace(shape, tied=False)
        decoder = LlamaDecoder(
            shape=shape, slots=slots, max_context=context, device=device, dtype=dtype, quantization=quantization
        )
        decoder.load(weights)
    except EngineError as error:
        raise ConfigError(f"The model in {folder} cannot be used: {error}") from error
    return decoder


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a model's folder in safetensors. Raises `EngineError` where there is none."""
    weights: dict[str, Tensor] = {}
    try:
        for file in _weight_files(folder):
            weights |= load_file(file)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise EngineError(f"The weights in {folder} cannot be read: {error}.") from error
    if not weights:
        raise EngineError(f"The folder {folder} holds no *.safetensors file to read weights from.")
    return weights


def _weight_files(folder: Path) -> list[Path]:
    """Return the files that transformers would read: of shards, those that the index names."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.exists():
        return [whole]
    if index.exists():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return sorted(folder.glob("*.safetensors"))


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"The folder {folder} holds no model: its config.json cannot be read ({error}).") from error
    if not isinstance(config, dict):
        raise ConfigError(f"The folder {folder} holds no model: its config.json is not an object.")
    return config
