"""Hugging Face folders: reading a causal LM, and writing checkpoints atomically.

A checkpoint is such a folder with the tokenizer's files and `trainer_state.pt` (optimizer, random state, version)
beside the weights, so that it serves as `model.path` too; a reference policy is a model folder inside it. It is written
under another name and renamed at the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from ale.errors import ConfigError

STATE_FILE = "trainer_state.pt"
REFERENCE_FOLDER = "reference"
TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
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


@contextmanager
def write_atomically(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside `folder` to write into; it replaces `folder` only at the end."""
    recover_checkpoint(folder)
    new, old = _beside(folder)
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    new.mkdir(parents=True)
    yield new
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def write_model(folder: Path, model: Any, tokenizer_folder: Path) -> None:
    """Write the model into `folder`, and the files of the tokenizer that `tokenizer_folder` holds."""
    for pattern in TOKENIZER_FILES:
        for file in tokenizer_folder.glob(pattern):
            if file.is_file():
                shutil.copy2(file, folder / file.name)
    with without_progress_bars():
        model.save_pretrained(str(folder))


def write_state(folder: Path, state: dict[str, Any], reference: Any | None) -> None:
    """Write the rest of a checkpoint into a model folder: the trainer's state and the reference policy, if any."""
    if reference is not None:
        with without_progress_bars():
            reference.save_pretrained(str(folder / REFERENCE_FOLDER))
    torch.save(state, folder / STATE_FILE)


def recover_checkpoint(folder: Path) -> None:
    """Restore the old checkpoint if a process died while it was replacing it."""
    _, old = _beside(folder)
    if old.exists() and not folder.exists():
        old.rename(folder)


def read_state(folder: Path) -> dict[str, Any]:
    """The state that `write_state` put beside the weights. Raises `ConfigError`."""
    file = folder / STATE_FILE
    if not file.is_file():
        raise ConfigError(f"{folder} is not a checkpoint of the trainer 'torch': it holds no {STATE_FILE}.")
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises many types
        raise ConfigError(f"{file} cannot be read; the checkpoint is damaged, use an earlier one.") from error
    return state


def _beside(folder: Path) -> tuple[Path, Path]:
    """Return the temporary paths of the new and the old checkpoint, in the same file system."""
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")


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
