"""Units of tokens (token, chunk or trajectory) that share a ratio, a mask or a weight.

Shapes: M tokens with loss, in any order; `segments` [M] int64 says which unit (token, chunk or trajectory) each token
belongs to, numbered from 0; some numbers may be unused.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ale.specs.trainer import ChunkTable, ChunkTensors
from ale_torch.losses import Level


def segments_of(level: Level, chunk_ids: Tensor, chunks: ChunkTable | ChunkTensors) -> Tensor:
    """Return the unit of each token at this level. [M]"""
    if level == "token":
        return torch.arange(len(chunk_ids), device=chunk_ids.device)
    return chunk_ids if level == "chunk" else torch.as_tensor(chunks.trajectory)[chunk_ids]


def segment_sizes(values: Tensor, segments: Tensor) -> Tensor:
    """Return the size of each token's unit, in the type of `values`. [M] -> [M]"""
    if len(segments) == 0:
        return values
    counts = values.new_zeros(int(segments.max()) + 1).index_add_(0, segments, torch.ones_like(values))
    return counts[segments]


def segment_mean(values: Tensor, segments: Tensor) -> Tensor:
    """Return for each token the mean over its unit. [M] -> [M]"""
    if len(segments) == 0:
        return values
    sums = values.new_zeros(int(segments.max()) + 1).index_add(0, segments, values)
    return sums[segments] / segment_sizes(values.detach(), segments)
