"""The fingerprint of weights, by which a server that answers 200 and still serves old weights is found.

1. It has a `TensorSum` for each tensor: the sum of the bit patterns of its values (as signed integers) in the server's
   dtype, and for each dimension the same sum with every value times its position. All are modulo 2**64. The first does
   not depend on how a server orders its values; the others change if experts, heads, rows or columns change places.
2. `of_folder` computes it from the weights that were sent; the server computes the same over the parameters that it
   serves, and `compare` names the tensors that differ.
3. A server merges q, k, v and gate, up, and stacks experts: these get the merged name, and the sums that they have one
   after the other. Padding with zeros at the end changes nothing. A tied `lm_head` is left out, and so are the
   frequencies of rotary embeddings, which old folders hold and servers compute.
4. Some servers transpose, interleave or split tensors. So `compare` takes down in which dimensions a tensor was ordered
   as in the folder, and expects that it always is, or never.
5. What only one side names (an architecture that the server renames) is compared in one sum, without what the server
   computes from it, and in its order where equal sums tell which tensor is which."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ale.errors import EngineError
from ale_engines.weights.tensor_files import NAMES, Array, StoredTensor, cast, read_folder

MERGED = {
    "q_proj": ("qkv_proj", 0),
    "k_proj": ("qkv_proj", 1),
    "v_proj": ("qkv_proj", 2),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
"""The name under which a server holds a layer, and the place of this part there."""
EXPERTS = {
    "gate_proj": ("w13", 0),
    "w1": ("w13", 0),
    "up_proj": ("w13", 1),
    "w3": ("w13", 1),
    "down_proj": ("w2", 0),
    "w2": ("w2", 0),
}
"""The same of an expert's layers."""
LAYER = re.compile(rf"\b({'|'.join(MERGED)})\b")
EXPERT = re.compile(rf"\bexperts\.(\d+)\.({'|'.join(EXPERTS)})\.(weight|bias)$")
STACKED = re.compile(r"\bexperts\.(gate_up_proj|down_proj)(?:\.weight|_(bias))?$")
"""Experts that are one tensor in the folder too."""
COMPUTED = re.compile(r"\.(A|A_log)$")
"""What a server computes from the folder's value: the decay of state-space layers, A = -exp(A_log)."""
CHUNK = 2**18
"""Values that are cast and summed at once: they stay in the processor's cache."""
MODULUS = 2**64


class TensorSum(NamedTuple):
    """What is compared of one tensor."""

    shape: tuple[int, ...]
    """Its sizes without what a server pads."""
    total: int
    """The sum of its bits."""
    moments: tuple[int, ...]
    """For each dimension, the sum of its bits times their position in it."""


Fingerprint = Mapping[str, TensorSum]
"""The sums of a model by the name of the tensor, as a server names it."""
Layout = MutableMapping[tuple[str, int], bool]
"""Whether a server holds a tensor, in one of its dimensions, in the order of the folder."""


def of_folder(folder: Path, dtype: str, tied: bool) -> Fingerprint:
    """Return the fingerprint of a model's folder as a server in `dtype` (`float32`, `bfloat16`, `float16`) holds it;
    `tied` says whether the model's `lm_head` is its embedding."""
    return of_tensors(read_folder(folder).items(), dtype, tied)


@asynccontextmanager
async def summed_meanwhile(folder: Path, dtype: str, tied: bool) -> AsyncIterator[asyncio.Future[Fingerprint]]:
    """`of_folder` in a thread, beside what the server does; it is done afterwards, also after an error, since the
    folder may vanish then."""
    summing = asyncio.ensure_future(asyncio.to_thread(of_folder, folder, dtype, tied))
    try:
        yield summing
    finally:
        await asyncio.wait([summing])


def of_tensors(tensors: Iterable[tuple[str, StoredTensor]], dtype: str, tied: bool) -> Fingerprint:
    """The same of tensors with their names."""
    return merge({name: sum_bits(tensor, NAMES[dtype]) for name, tensor in tensors}, tied)


def merge(sums: Mapping[str, Sequence[Any]], tied: bool) -> Fingerprint:
    """Return the fingerprint of tensors whose bits have been summed one by one (the fields of `TensorSum`)."""
    parts: dict[str, list[tuple[int, int, TensorSum]]] = {}
    for name, value in sums.items():
        if not (tied and name == "lm_head.weight") and not name.endswith("rotary_emb.inv_freq"):
            merged, expert, place = merged_name(name)
            parts.setdefault(merged, []).append((expert, place, TensorSum(*value)))
    return {name: join(found) for name, found in parts.items()}


def merged_name(name: str) -> tuple[str, int, int]:
    """Return the name under which a server holds a tensor of a Hugging Face model, the number of the expert there (-1
    if it is no expert's), and the place of the part."""
    if (found := EXPERT.search(name)) is not None:
        stacked, place = EXPERTS[found[2]]
        return f"{name[: found.start()]}experts.{stacked}_{found[3]}", int(found[1]), place
    if (found := STACKED.search(name)) is not None:
        stacked = "w2" if found[1] == "down_proj" else "w13"
        return f"{name[: found.start()]}experts.{stacked}_{found[2] or 'weight'}", -1, 0
    if (found := LAYER.search(name)) is not None:
        merged, place = MERGED[found[1]]
        return f"{name[: found.start()]}{merged}{name[found.end() :]}", -1, place
    return name, -1, 0


def join(parts: list[tuple[int, int, TensorSum]]) -> TensorSum:
    """Return the sums of tensors that lie one after the other, in the order of their places; experts are in a new
    dimension before. Each is given with its expert and its place, as `merged_name` finds them."""
    total, moments, shape = 0, list[int](), tuple[int, ...]()
    rows: dict[int, int] = {}
    for expert, _, part in sorted(parts):
        first = rows.get(expert, 0)
        rows[expert] = first + (part.shape[0] if part.shape else 0)
        own, shape = list(part.moments), (rows[expert], *part.shape[1:]) if part.shape else ()
        if own:
            own[0] += first * part.total
        if expert >= 0:
            own, shape = [expert * part.total, *own], (expert + 1, *shape)
        total += part.total
        moments = [one + other for one, other in zip_longest(moments, own, fillvalue=0)]
    return TensorSum(shape, total % MODULUS, tuple(moment % MODULUS for moment in moments))


def sum_bits(tensor: StoredTensor, dtype: str) -> TensorSum:
    """The sums of a tensor's values, cast to a dtype of the format."""
    shape = tensor.values.shape
    if not tensor.values.size:
        return TensorSum(shape, 0, (0,) * len(shape))
    table: Array = tensor.values.reshape(-1, shape[-1] if len(shape) > 1 else 1)
    rows, columns = np.zeros(len(table), np.int64), np.zeros(table.shape[1], np.int64)
    step = max(1, CHUNK // table.shape[1])
    for start in range(0, len(table), step):
        values = cast(StoredTensor(tensor.dtype, table[start : start + step]), dtype).values
        bits = np.ascontiguousarray(values).view(np.dtype(f"i{values.itemsize}")).astype(np.int64)
        rows[start : start + step] = bits.sum(1)
        columns += bits.sum(0)
    leading: Array = rows.reshape(shape[:-1] if len(shape) > 1 else shape)
    slices: list[Array] = []
    for dimension in range(leading.ndim):
        others = tuple(other for other in range(leading.ndim) if other != dimension)
        slices.append(leading.sum(others))
    slices += [columns] if len(shape) > 1 else []
    moments = [int((sums * np.arange(len(sums))).sum()) % MODULUS for sums in slices]
    return TensorSum(shape, int(rows.sum()) % MODULUS, tuple(moments))


def compare(sent: Fingerprint, served: Fingerprint, server: str, layout: Layout | None = None) -> None:
    """Raise `EngineError` that names the tensors of which the server holds something else than was sent. `layout` is
    what earlier comparisons with this server took down; without it, all is expected to be in the folder's order."""
    both = sent.keys() & served.keys()
    wrong = sorted(name for name in both if sent[name].total != served[name].total)
    rest = [
        sum(side[name].total for name in side.keys() - other.keys() if not COMPUTED.search(name))
        for side, other in ((sent, served), (served, sent))
    ]
    if (rest[0] - rest[1]) % MODULUS:
        wrong += sorted(sent.keys() ^ served.keys())
    if wrong:
        raise EngineError(f"{server} says that it loaded the weights, but it serves others: {name_some(wrong)} differ.")
    pairs = {name: name for name in both} | match_renamed(sent, served)
    found = {
        place: same for name, other in pairs.items() for place, same in compare_order(name, sent[name], served[other])
    }
    known = layout if layout is not None else dict.fromkeys(found, True)
    if moved := sorted({place[0] for place, same in found.items() if known.get(place, same) != same}):
        raise EngineError(
            f"{server} says that it loaded the weights, but it serves others: the values of {name_some(moved)} are in "
            "another order (of experts, heads, rows or columns)."
        )
    known.update(found)


def match_renamed(sent: Fingerprint, served: Fingerprint) -> dict[str, str]:
    """Return the server's names of tensors that only one side names, where their sum tells which is which."""
    totals: dict[int, tuple[list[str], list[str]]] = {}
    for at, (side, other) in enumerate(((sent, served), (served, sent))):
        for name in side.keys() - other.keys():
            totals.setdefault(side[name].total, ([], []))[at].append(name)
    return {ours[0]: theirs[0] for ours, theirs in totals.values() if len(ours) == len(theirs) == 1}


def compare_order(name: str, sent: TensorSum, served: TensorSum) -> Iterable[tuple[tuple[str, int], bool]]:
    """Yield for each dimension of a tensor whether the values are in the same order, where their order matters."""
    if len(sent.moments) == len(served.moments):
        for dimension, (one, other) in enumerate(zip(sent.moments, served.moments, strict=True)):
            # Of a tensor whose slices are all alike, such as zeros, every order has this moment.
            if (2 * one - (sent.shape[dimension] - 1) * sent.total) % MODULUS:
                yield (name, dimension), one == other


def name_some(names: Sequence[str]) -> str:
    """Return the first names, and how many there are more."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"
