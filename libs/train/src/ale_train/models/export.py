"""Writes what other programs load of a checkpoint: the policy as a model folder, and its adapter if there is one.

checkpoints/step_45/    what the trainer saved: the model with optimizer, random state, reference
stages/sft/             the same at the end of a supervised stage
model/final/            what `from_pretrained` of transformers needs of it, and nothing else
model/final_adapter/    with LoRA, what `peft` loads over the base model

Weights are on the disk once: both folders link to one file, where the file system can. Nothing writes into such a file;
who saves other weights in one of the folders, as `save_pretrained` does, puts a new file in its place.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from ale_train.models.model_files import TEMPLATES, choose_files
from ale_train.models.whole_folders import put_in_place

STAGES = "stages"
ADAPTER, ADAPTER_CONFIG = "adapter", "adapter_config.json"
LEFT_OUT = ("loop.json",)
"""Files of a checkpoint that would pass for a model's by their names."""


def after_stage(run: Path, stage: str) -> Path:
    """Return the place of what the trainer saved at the end of a stage."""
    return run / STAGES / stage


def export_model(checkpoint: Path, folder: Path, base: tuple[Path, str | None]) -> None:
    """Write the model in a checkpoint as `folder`, and its adapter as `<folder>_adapter`; each replaces an earlier one
    only when it is whole. `base` is the model, and its revision, that the adapter changes."""
    new = _begin(folder)
    for name in choose_files([path.name for path in checkpoint.iterdir() if path.is_file()]):
        if name not in LEFT_OUT:
            _link_or_copy(checkpoint / name, new / name)
    if (checkpoint / TEMPLATES).is_dir():
        shutil.copytree(checkpoint / TEMPLATES, new / TEMPLATES)
    put_in_place(new, folder)
    adapter = folder.with_name(f"{folder.name}_{ADAPTER}")
    if (checkpoint / ADAPTER / ADAPTER_CONFIG).is_file():
        new = _begin(adapter)
        shutil.copytree(checkpoint / ADAPTER, new, dirs_exist_ok=True)
        settings = json.loads((new / ADAPTER_CONFIG).read_text())
        name = str(base[0].resolve() if base[0].is_dir() else base[0])
        settings |= {"base_model_name_or_path": name, "revision": base[1], "inference_mode": True}
        (new / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n")
        put_in_place(new, adapter)


def _link_or_copy(file: Path, target: Path) -> None:
    """Link to weights. Small files are copied, since people edit them."""
    if file.suffix == ".safetensors":
        try:
            return os.link(file, target)
        except OSError:  # another file system, or one without links
            pass
    shutil.copy2(file, target)


def _begin(folder: Path) -> Path:
    """Return a new folder beside `folder`, to be written."""
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    return new
