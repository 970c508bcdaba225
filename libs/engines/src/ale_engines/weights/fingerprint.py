"""The fingerprint of weights, by which a server that answers 200 and still serves old weights is found.

1. It is a number for each module: the sum, modulo 2**64, of the bit patterns of its values (as signed integers) in the
   server's dtype. A sum does not depend on how a server merges, pads with zeros, or splits its tensors.
2. `of_folder` computes it from the weights that were sent; the server computes the same over the parameters that it
   serves, and `compare` names the tensors that differ.
3. A server merges q, k, v and gate, up: these are summed under the merged name. A tied `lm_head` is left out, and so
   are the frequencies of rotary embeddings, which old folders hold and servers compute.
4. What only one side names (an architecture that the server renames) is compared in one sum."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from ale.errors import EngineError
from ale_engines.weights.tensor_files import NAMES, Array, StoredTensor, cast, read_folder

MERGED = (
    (re.compile(r"\b(q|k|v)_proj\b"), "qkv_proj"),
    (re.compile(r"\b(gate|up)_proj\b"), "gate_up_proj"),
)
CHUNK = 2**18
"""Values that are cast and summed at once: they stay in the processor's cache."""


def merged_name(name: str) -> str:
    """Return the name under which a server holds a tensor of a Hugging Face model."""
    for pattern, merged in MERGED:
        name = pattern.sub(merged, name)
    return name


def of_folder(folder: Path, dtype: str, tied: bool) -> dict[str, int]:
    """Return the fingerprint of a model's folder as a server in `dtype` (`float32`, `bfloat16`, `float16`) holds it;
    `tied` says whether the model's `lm_head` is its embedding."""
    return of_tensors(read_folder(folder).items(), dtype, tied)


@asynccontextmanager
async def summed_meanwhile(folder: Path, dtype: str, tied: bool) -> AsyncIterator[asyncio.Future[dict[str, int]]]:
    """`of_folder` in a thread, beside what the server does; it is done afterwards, also after an error, since the
    folder may vanish then."""
    summing = asyncio.ensure_future(asyncio.to_thread(of_folder, folder, dtype, tied))
    try:
        yield summing
    finally:
        await asyncio.wait([summing])


def of_tensors(tensors: Iterable[tuple[str, StoredTensor]], dtype: str, tied: bool) -> dict[str, int]:
    """The same of tensors with their names."""
    return merge({name: sum_bits(tensor, NAMES[dtype]) for name, tensor in tensors}, tied)


def merge(sums: Mapping[str, int], tied: bool) -> dict[str, int]:
    """Return the fingerprint of tensors whose bits have been summed one by one."""
    merged: dict[str, int] = {}
    for name, value in sums.items():
        if not (tied and name == "lm_head.weight") and not name.endswith("rotary_emb.inv_freq"):
            key = merged_name(name)
            merged[key] = (merged.get(key, 0) + value) % 2**64
    return merged


def sum_bits(tensor: StoredTensor, dtype: str) -> int:
    """The sum of the bit patterns of a tensor's values, cast to a dtype of the format."""
    flat: Array = tensor.values.reshape(-1)
    total = 0
    for start in range(0, flat.size, CHUNK):
        values = cast(StoredTensor(tensor.dtype, flat[start : start + CHUNK]), dtype).values
        total += int(values.view(np.dtype(f"i{values.itemsize}")).sum(dtype=np.int64))
    return total % 2**64


def compare(sent: Mapping[str, int], served: Mapping[str, int], server: str) -> None:
    """Raise `EngineError` that names the tensors of which the server holds something else than was sent."""
    wrong = sorted(name for name in sent.keys() & served.keys() if sent[name] != served[name])
    rest = [sum(side[name] for name in side.keys() - other.keys()) for side, other in ((sent, served), (served, sent))]
    if (rest[0] - rest[1]) % 2**64:
        wrong += sorted(sent.keys() ^ served.keys())
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise EngineError(
            f"{server} says that it loaded the weights, but it serves others: {', '.join(wrong[:3])}{more} differ."
        )
