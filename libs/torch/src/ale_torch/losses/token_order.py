"""The order of time of the tokens of a batch, for returns and advantages that differ from token to token.

The actions of a trajectory are the tokens that the policy sampled in it, in the order of their chunks, over all of its
contexts. Tool output and other text that it was shown is no action.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ale.specs.trainer import TrainBatch

Places = npt.NDArray[np.int64]


def in_order(batch: TrainBatch) -> list[Places]:
    """Return for each trajectory with a token with loss the places of these tokens in the batch, in order of time."""
    at = np.flatnonzero(batch.chunk_ids >= 0)
    rows = batch.chunk_ids[at]
    owners = batch.chunks.trajectory[rows]
    order = np.lexsort((at, batch.chunks.position[rows], owners))
    ends = np.flatnonzero(np.diff(owners[order])) + 1
    return np.split(at[order], ends) if len(at) else []
