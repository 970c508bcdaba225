"""Weights of experts under the names that a model's folder has for them.

In transformers' models the experts of a layer are one tensor (`mlp.experts.gate_up_proj`, [experts, 2 * inner,
hidden]), while most folders hold a matrix for each (`mlp.experts.3.gate_proj.weight`, or
`block_sparse_moe.experts.3.w1.weight`). Servers read the folder's names. `find_sources` says from which tensor, expert
and rows each of them is taken."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ale_engines.weights.tensor_files import StoredTensor, read_folder, write_file

Shapes = Mapping[str, tuple[int, ...]]
STACKED = re.compile(r"^(.*\.experts)\.(gate_up_proj|down_proj)$")
LAYERS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
BLOCKS = (".mlp.", ".block_sparse_moe.")
"""The name of the block with the experts in transformers' models, and that of some folders."""


@dataclass(frozen=True)
class Source:
    """What a tensor is taken from."""

    name: str
    expert: int | None = None
    """None: the whole tensor."""
    rows: tuple[int, int] = (0, 0)
    """The first row of the expert's, and the one after the last."""

    def take(self, tensors: Mapping[str, StoredTensor]) -> StoredTensor:
        """Return the tensor; its values stay where they are."""
        whole = tensors[self.name]
        if self.expert is None:
            return whole
        return StoredTensor(whole.dtype, whole.values[self.expert, slice(*self.rows)])


@asynccontextmanager
async def use_model_names(folder: Path, wanted: Collection[str], scratch: Path | None) -> AsyncIterator[Path]:
    """Yield a folder whose weights have the names `wanted`: `folder` itself, or, if it has the experts by other ones, a
    folder in `scratch`, which vanishes afterwards."""
    tensors = await asyncio.to_thread(read_folder, folder)
    sources = find_sources({name: tensor.values.shape for name, tensor in tensors.items()}, wanted)
    if sources.keys() == tensors.keys():
        yield folder
        return
    renamed = Path(tempfile.mkdtemp(prefix="renamed-", dir=scratch))
    try:
        taken = {name: source.take(tensors) for name, source in sources.items()}
        await asyncio.to_thread(write_file, renamed / "model.safetensors", taken)
        yield renamed
    finally:
        await asyncio.to_thread(shutil.rmtree, renamed, ignore_errors=True)


def find_sources(shapes: Shapes, wanted: Collection[str]) -> dict[str, Source]:
    """Return the source of each tensor by the name that a model of the names `wanted` has for it, among tensors of
    these shapes. Names that neither are wanted nor can be split stay."""
    found: dict[str, Source] = {}
    for name, shape in shapes.items():
        renamed = name.replace(*BLOCKS)
        stacked = STACKED.match(name)
        if name in wanted:
            found[name] = Source(name)
        elif stacked and len(shape) == 3 and (split := _split(stacked[1], stacked[2], shape, wanted)):
            found |= {own: Source(name, expert, rows) for own, (expert, rows) in split.items()}
        else:
            found[renamed if renamed in wanted else name] = Source(name)
    return found


def _split(
    experts: str, layer: str, shape: tuple[int, ...], wanted: Collection[str]
) -> dict[str, tuple[int, tuple[int, int]]] | None:
    """Return the folder's names of the matrices in one tensor, each with its expert and rows; None if it has others."""
    rows = shape[1]
    for prefix in (experts, experts.replace(*BLOCKS)):
        for gate, up, down in LAYERS:
            both = {gate: (0, rows // 2), up: (rows // 2, rows)}
            parts = both if layer == "gate_up_proj" else {down: (0, rows)}
            names = {
                f"{prefix}.{expert}.{part}.weight": (expert, where)
                for expert in range(shape[0])
                for part, where in parts.items()
            }
            if all(name in wanted for name in names):
                return names
    return None
