"""Reads and writes safetensors files with numpy alone, bfloat16 included, which numpy does not have.

A tensor is a `StoredTensor`: its dtype as the format names it (`F32`, `BF16`, `F16`, ...), and its values mapped from
the file; those of BF16 are their bit patterns in uint16."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ale.errors import EngineError

Array = npt.NDArray[Any]

FORMATS: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I64": np.int64, "I32": np.int32,
    "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""The format's name of each dtype that an engine computes in."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file."""

    dtype: str
    values: Array


def read_folder(folder: Path) -> dict[str, StoredTensor]:
    """Map all tensors of a model's folder. Raises `EngineError` if it holds none, or a broken file."""
    return {name: tensor for file in list_files(folder) for name, tensor in read_file(file)}


def list_files(folder: Path) -> list[Path]:
    """Return the files that transformers reads: `model.safetensors`, or the shards that the index names; all of a
    folder that has neither. Raises `EngineError` if there is none."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    try:
        names = [whole.name] if whole.is_file() else sorted({*json.loads(index.read_bytes())["weight_map"].values()})
    except FileNotFoundError:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"{index} cannot be read as the index of a model's shards: {error!r}.") from None
    if not names:
        raise EngineError(f"{folder} holds no weights: there is no .safetensors file in it.")
    return [folder / name for name in names]


def read_file(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    """Yield the name and the tensor of each entry."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        data = np.memmap(path, np.uint8, "r", 8 + length) if header else np.zeros(0, np.uint8)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            values = data[begin:end].view(FORMATS[entry["dtype"]]).reshape(entry["shape"])
            yield name, StoredTensor(entry["dtype"], values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{path} cannot be read as safetensors: {error}.") from None


def write_file(path: Path, tensors: Mapping[str, StoredTensor]) -> None:
    """Write tensors to a file. Raises `EngineError` if there is no room."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.values.nbytes
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.values.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    try:
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in tensors.values():
                np.ascontiguousarray(tensor.values).tofile(file)
    except OSError as error:
        raise EngineError(f"The weights cannot be written to {path}: {error}.") from None


def cast(tensor: StoredTensor, dtype: str) -> StoredTensor:
    """Convert a floating tensor as torch does (to the nearest, ties to even); others stay as they are."""
    if tensor.dtype == dtype or tensor.dtype not in ("F64", "F32", "F16", "BF16"):
        return tensor
    if tensor.dtype == "BF16":
        exact: Array = (tensor.values.astype(np.uint32) << 16).view(np.float32)
    else:
        exact = tensor.values.astype(np.float32)
    if dtype == "BF16":
        bits = exact.view(np.uint32)
        return StoredTensor(dtype, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))
    return StoredTensor(dtype, exact.astype(FORMATS[dtype], copy=False))
