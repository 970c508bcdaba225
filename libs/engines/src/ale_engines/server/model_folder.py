"""What a client must know of the model that a server gets: its limits, and the tensors that new weights must have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ale.errors import ConfigError, EngineError
from ale_engines.weights.tensor_files import NAMES, read_folder

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class ModelFolder:
    """A Hugging Face folder of a causal language model."""

    folder: Path
    config: Mapping[str, Any]
    shapes: Shapes
    size: int
    """Bytes of all weights as they are stored."""

    @property
    def tied(self) -> bool:
        """Whether `lm_head` is the embedding."""
        if "tie_word_embeddings" in self.config:
            return bool(self.config["tie_word_embeddings"])
        return "lm_head.weight" not in self.shapes

    def max_context(self, wanted: int) -> int:
        """The smaller of `wanted` and the model's own limit."""
        return min(wanted, int(self.config.get("max_position_embeddings", wanted)))

    def dtype(self, name: str, cuda: bool) -> str:
        """Choose the dtype: `auto` is float32 on the CPU and the one in which the folder was saved on a GPU."""
        saved = str(self.config.get("dtype") or self.config.get("torch_dtype") or "bfloat16")
        return name if name != "auto" else saved if cuda and saved in NAMES else "bfloat16" if cuda else "float32"

    def check_same(self, shapes: Shapes, source: str) -> None:
        """Raise `EngineError` if tensors of these shapes are not weights of this model; `source` names their origin."""
        optional = {"lm_head.weight"} if self.tied else set()
        missing = sorted(self.shapes.keys() - shapes.keys() - optional)
        unknown = sorted(shapes.keys() - self.shapes.keys() - optional)
        other = sorted(name for name in shapes.keys() & self.shapes.keys() if shapes[name] != self.shapes[name])
        for what, names in (("is missing", missing), ("is unknown", unknown), ("has another shape", other)):
            if names:
                mend = ""
                if any(".experts." in name for name in missing) and any("experts" in name for name in unknown):
                    mend = (
                        f" They have the experts by other names, such as '{unknown[0]}': publish them by the names of "
                        f"the model's folder ({self.folder}), as `save_pretrained` of transformers writes them."
                    )
                raise EngineError(f"{source} are not weights of the model that was loaded: '{names[0]}' {what}.{mend}")


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in a folder. Raises `EngineError` if it holds no weights."""
    return {name: tensor.values.shape for name, tensor in read_folder(folder).items()}


def read_model_folder(folder: Path | None, engine: str) -> ModelFolder:
    """Read a model's folder for the engine of that name. Raises `ConfigError` if there is none."""
    if folder is None:
        raise ConfigError(f"engine: '{engine}' needs a model; give model.path or model.scratch.")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model: {folder} is not a Hugging Face model folder: {error}.") from None
    tensors = read_folder(folder)
    size = sum(tensor.values.nbytes for tensor in tensors.values())
    return ModelFolder(folder, config, {name: tensor.values.shape for name, tensor in tensors.items()}, size)
