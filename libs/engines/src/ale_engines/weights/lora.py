"""LoRA adapters as weights: an adapter in PEFT's layout is merged into its base model, and the server loads the result.

W' = W + scale * B @ A, with scale = lora_alpha / r, or lora_alpha / sqrt(r) for rank-stabilised adapters
(https://arxiv.org/abs/2106.09685, https://arxiv.org/abs/2312.03732)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

from ale.errors import EngineError
from ale_engines.weights.tensor_files import StoredTensor, cast, read_file, read_folder, write_file

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
UNSUPPORTED = ("use_dora", "fan_in_fan_out", "rank_pattern", "alpha_pattern", "modules_to_save")


@contextlib.asynccontextmanager
async def whole_model(folder: Path, base: Path, scratch: Path | None) -> AsyncIterator[Path]:
    """Yield a folder of whole weights: `folder` itself, or, if it holds an adapter, a folder in `scratch` with the
    adapter merged into the model `base`, which vanishes afterwards."""
    if not (folder / CONFIG).is_file():
        yield folder
        return
    merged = Path(tempfile.mkdtemp(prefix="merged-", dir=scratch))
    try:
        yield await asyncio.to_thread(merge_adapter, folder, base, merged)
    finally:
        await asyncio.to_thread(shutil.rmtree, merged, ignore_errors=True)


def merge_adapter(adapter: Path, base: Path, target: Path) -> Path:
    """Write the base model's weights with the adapter merged into them to the folder `target`, which is made; each
    tensor keeps its dtype. Returns `target`. Raises `EngineError` if the adapter is not one of that model."""
    scale = read_scale(adapter)
    tensors = read_folder(base)
    parts: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in read_file(adapter / WEIGHTS):
        module, _, part = name.removeprefix(PREFIX).rpartition(".lora_")
        if part not in ("A.weight", "B.weight"):
            raise EngineError(f"{adapter} holds '{name}'; only lora_A and lora_B of linear layers can be merged.")
        parts.setdefault(f"{module}.weight", {})[part[0]] = tensor
    for name, pair in parts.items():
        if name not in tensors:
            raise EngineError(f"{adapter} changes '{name}', which the model in {base} does not have.")
        if pair.keys() != {"A", "B"}:
            raise EngineError(f"{adapter} holds only lora_{min(pair)} for '{name}'; A and B are needed.")
        delta = scale * (cast(pair["B"], "F32").values @ cast(pair["A"], "F32").values)
        old = tensors[name]
        if delta.shape != old.values.shape:
            raise EngineError(
                f"{adapter} changes '{name}' with shape {delta.shape}, but it is {old.values.shape} in the model."
            )
        merged = np.asarray(cast(old, "F32").values + delta, dtype=np.float32)
        tensors[name] = cast(StoredTensor("F32", merged), old.dtype)
    target.mkdir(parents=True, exist_ok=True)
    write_file(target / "model.safetensors", tensors)
    return target


def read_scale(adapter: Path) -> float:
    """Return the factor of B @ A. Raises `EngineError` if the adapter is of a kind that is not merged here."""
    try:
        config: dict[str, Any] = json.loads((adapter / CONFIG).read_text(encoding="utf-8"))
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{adapter / CONFIG} is not a LoRA adapter's configuration: {error!r}.") from None
    if config.get("peft_type", "LORA") != "LORA" or any(config.get(key) for key in UNSUPPORTED):
        used = next((key for key in UNSUPPORTED if config.get(key)), "peft_type")
        raise EngineError(f"{adapter} sets {used}, which is not merged here: merge it into the model first.")
    return float(alpha / (np.sqrt(rank) if config.get("use_rslora") else rank))
