"""Folders in shared memory, through which weights reach a server without a disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ale.errors import EngineError

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "ale-weights-"


def make_weights_folder(size: int) -> Path:
    """Make a new folder for `size` bytes of weights: in shared memory if there is twice as much room (an old version
    may still be read while a new one is written), else where temporary files go. The caller removes it."""
    try:
        if shutil.disk_usage(SHARED_MEMORY).free >= 2 * size:
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=SHARED_MEMORY))
    except OSError:
        pass  # there is no shared memory here, or this user may not write to it
    return Path(tempfile.mkdtemp(prefix=PREFIX))


def write_tensors(weights: Mapping[str, Any], folder: Path, names: Collection[str]) -> Path:
    """Write torch tensors by name to a new safetensors file in `folder`, which is made. Tied ones are written once, by
    that of their names that is one of `names`, those of the model's folder, in whatever order they come. Returns the
    folder. Raises `EngineError` if there is no room."""
    from safetensors.torch import save_file  # needs torch, which is there: it made the tensors

    seen: set[tuple[int, tuple[int, ...]]] = set()
    once: dict[str, Any] = {}
    for name, tensor in sorted(weights.items(), key=lambda item: item[0] not in names):
        memory = (tensor.data_ptr(), tuple(tensor.shape))
        if memory not in seen or tensor.numel() == 0:
            once[name] = tensor.detach().contiguous()
        seen.add(memory)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        save_file(once, folder / "model.safetensors", {"format": "pt"})
    except Exception as error:  # safetensors has errors of its own for a full disk
        raise EngineError(f"The weights cannot be written to {folder}: {error}.") from None
    return folder
