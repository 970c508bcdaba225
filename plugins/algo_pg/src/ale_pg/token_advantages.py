"""REINFORCE++'s KL penalty in the reward (Hu et al., 2025, arXiv:2501.03262): a token pays for what follows it.

    A_t = R - sum over i >= t of cost_i

`R` is the trajectory's signal and `cost_i` what the divergence takes off the reward of its i-th sampled token. The cost
of a token before t is no consequence of token t, so it is not in its advantage. With `token_std` the advantages are
whitened over all tokens. This holds without a baseline; a baseline compares whole trajectories, whose costs are summed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ale.specs.trainer import TrainBatch
from ale_pg.advantages import whiten
from ale_torch.losses.token_order import in_order

Numbers = npt.NDArray[np.float64]


def token_advantages(batch: TrainBatch, rewards: Sequence[float], costs: Numbers, *, whitened: bool) -> Numbers:
    """Return the advantage of each token [N], 0 without loss. `rewards` are those of the trajectories, by their numbers
    in the batch; `costs` are [N]."""
    advantages = np.zeros(len(costs))
    for at in in_order(batch):
        reward = rewards[int(batch.chunks.trajectory[batch.chunk_ids[at[0]]])]
        advantages[at] = reward - np.cumsum(costs[at][::-1])[::-1]
    if whitened:
        trained = batch.chunk_ids >= 0
        advantages[trained] = whiten(advantages[trained], np.ones(int(trained.sum())))
    return advantages


def chunk_means(batch: TrainBatch, values: Numbers) -> Numbers:
    """Return the mean over the tokens of each chunk [C] of values of tokens [N]."""
    trained, chunks = batch.chunk_ids >= 0, len(batch.chunks.returns)
    ids = batch.chunk_ids[trained]
    return np.bincount(ids, values[trained], minlength=chunks) / np.bincount(ids, minlength=chunks)
