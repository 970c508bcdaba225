"""Hugging Face folders: reading a causal LM, and writing one with its tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import logging

from ale.errors import ConfigError

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "additional_chat_templates",
    "vocab*",
    "merges.txt",
)


def read_model(folder: Path, dtype: torch.dtype) -> Any:
    """Read a causal LM, in evaluation mode, because dropout would make log-probabilities random.

    Raises `ConfigError` if there is none or weights are missing.
    """
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"The folder {folder} holds no model: it has no config.json. "
            "model.path must name a folder that `save_pretrained` of transformers wrote."
        )
    auto: Any = AutoModelForCausalLM
    try:
        with without_progress_bars():
            model, report = auto.from_pretrained(
                str(folder), local_files_only=True, dtype=dtype, output_loading_info=True
            )
    except Exception as error:  # transformers raises many types, all because of the folder
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"The folder {folder} holds no causal language model that can be loaded: {reason}") from error
    # transformers would fill missing weights with random numbers.
    broken = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if broken:
        raise ConfigError(
            f"The weights in {folder} do not fit its config.json: {len(broken)} are missing or of another shape, "
            f"the first is {broken[0]}."
        )
    model.eval()
    return model


def write_model(folder: Path, model: Any, weights: dict[str, Tensor], tokenizer_folder: Path) -> None:
    """Write whole weights, and the files of the tokenizer that `tokenizer_folder` holds."""
    for pattern in TOKENIZER_FILES:
        for file in tokenizer_folder.glob(pattern):
            if file.is_file():
                shutil.copy2(file, folder / file.name)
            else:
                shutil.copytree(file, folder / file.name, dirs_exist_ok=True)
    save_pretrained(folder, model, weights)


def save_pretrained(folder: Path, model: Any, weights: dict[str, Tensor]) -> None:
    """Write whole weights in the model's format."""
    with without_progress_bars():
        model.save_pretrained(str(folder), state_dict=weights)
    file = folder / "config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(add_earlier_names(settings), indent=2) + "\n")


def add_earlier_names(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with the names that readers made for transformers 4 know. They do not read
    `rope_parameters`, and would silently take their defaults of what it says of rotary positions."""
    config = {name: add_earlier_names(of) if name == "text_config" else of for name, of in config.items()}
    names: dict[str, Any] = {"torch_dtype": config["dtype"]} if "dtype" in config else {}
    rope = config.get("rope_parameters") or {}
    if str(config.get("model_type")).startswith("gemma3") and "full_attention" in rope:  # by the kind of layer
        names["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    names |= {name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
    if rope.get("rope_type", "default") != "default":
        names["rope_scaling"] = {name: of for name, of in rope.items() if name not in names}
    return {**names, **config}


def use_folder_names(model: Any, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return whole weights by the names, and in the parts, that a folder has them in, which engines read: experts that
    are one tensor in the model are matrices of their own there. Others stay the same tensors."""
    if not weights:
        return weights
    return {name: weight.contiguous() for name, weight in revert_weight_conversion(model, weights).items()}


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Turn off the progress bars of transformers; a run has its own display."""
    bars: Any = logging
    progress_bars = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if progress_bars:
            bars.enable_progress_bar()
