"""The files that make a folder a whole model: what a trainer, an engine and the chat template read."""

from __future__ import annotations

import json
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path

from ale.errors import ConfigError

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""One of these holds the weights, or names the files that do; the library prefers the first."""
SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
TEMPLATES = "additional_chat_templates"
"""The folder of a model's other chat templates."""


def find_missing(names: Collection[str]) -> list[str]:
    """Return what files of these names lack for a whole model, in words."""
    missing = [name for name in ("config.json", "tokenizer.json") if name not in names]
    if not set(WEIGHTS) & set(names):
        missing.append(f"weights ({WEIGHTS[0]})")
    return missing


def find_missing_in(folder: Path) -> list[str]:
    """Return what a folder lacks for a whole model: also the parts of its weights, and a chat template. Raises
    `ConfigError` if it cannot be read."""
    try:  # a link of an interrupted download leads nowhere
        names = {path.name for path in folder.iterdir() if path.exists()}
    except OSError as error:
        raise ConfigError(f"model.path: the folder {folder} cannot be read: {error.strerror}.") from error
    missing = find_missing(names)
    for index in [name for name in WEIGHTS if name.endswith(".index.json") and name in names]:
        missing += sorted(_parts(folder / index) - names)
    if "tokenizer.json" in names and not _has_template(folder, names):
        missing.append("a chat template (chat_template.jinja)")
    return missing


def choose_files(names: Collection[str]) -> list[str]:
    """Return those of a repository's files that a model needs: none of a subfolder, and one form of its weights."""
    safe = any(name in names for name in WEIGHTS[:2])
    patterns = (*SMALL_FILES, "model*.safetensors" if safe else "pytorch_model*.bin")
    return sorted(name for name in names if "/" not in name and any(fnmatchcase(name, p) for p in patterns))


def _parts(index: Path) -> set[str]:
    try:
        return set(json.loads(index.read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {f"the list of parts in {index.name}"}


def _has_template(folder: Path, names: Collection[str]) -> bool:
    if "chat_template.jinja" in names or (folder / "additional_chat_templates").is_dir():
        return True
    config = folder / "tokenizer_config.json"
    return config.is_file() and '"chat_template"' in config.read_text(errors="replace")
