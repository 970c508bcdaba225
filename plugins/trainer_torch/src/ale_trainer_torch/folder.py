"""Hugging Face folders: reading a causal LM, and checkpoints that are whole or absent.

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
    """The causal LM of a folder, in evaluation mode: dropout would make every log-probability a matter of chance.

    Raises `ConfigError` where there is none, or where the weights are not all there.
    """
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"The folder {folder} holds no model: it has no config.json. "
            "model.path must name a folder that `save_pretrained` of transformers wrote."
        )
    auto: Any = AutoModelForCausalLM
    try:
        with quiet():
            model, report = auto.from_pretrained(
                str(folder), local_files_only=True, dtype=dtype, output_loading_info=True
            )
    except Exception as error:  # the library raises many kinds; whichever it is, the folder is what is wrong
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"The folder {folder} holds no causal language model that can be loaded: {reason}") from error
    # The library would fill what is missing with random weights and go on.
    broken = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if broken:
        raise ConfigError(
            f"The weights in {folder} do not fit its config.json: {len(broken)} are missing or of another shape, "
            f"the first is {broken[0]}."
        )
    model.eval()
    return model


def write_checkpoint(
    folder: Path, model: Any, state: dict[str, Any], tokenizer_folder: Path, reference: Any | None = None
) -> None:
    """Write model, tokenizer, state and the reference model into `folder`, replacing what stands there."""
    restore(folder)
    new, old = _beside(folder)
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    new.mkdir(parents=True)
    for pattern in TOKENIZER_FILES:
        for file in tokenizer_folder.glob(pattern):
            if file.is_file():
                shutil.copy2(file, new / file.name)
    with quiet():
        model.save_pretrained(str(new))
        if reference is not None:
            reference.save_pretrained(str(new / REFERENCE_FOLDER))
    torch.save(state, new / STATE_FILE)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def restore(folder: Path) -> None:
    """Bring back the checkpoint that a process which died while replacing it had moved aside."""
    _, old = _beside(folder)
    if old.exists() and not folder.exists():
        old.rename(folder)


def read_state(folder: Path) -> dict[str, Any]:
    """The state that `write_checkpoint` put beside the weights. Raises `ConfigError`."""
    file = folder / STATE_FILE
    if not file.is_file():
        raise ConfigError(f"{folder} is not a checkpoint of the trainer 'torch': it holds no {STATE_FILE}.")
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file shows in many ways
        raise ConfigError(f"{file} cannot be read; the checkpoint is damaged, use an earlier one.") from error
    return state


def _beside(folder: Path) -> tuple[Path, Path]:
    """Where the new checkpoint is written and the old one waits, in the same file system."""
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars of transformers: a run has its own display."""
    bars: Any = logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()
