"""A KL penalty in the reward: each token that the policy sampled costs `coef * k(mu, ref)`.

PPO of InstructGPT (Ouyang et al., 2022, arXiv:2203.02155, Eq. 2) and REINFORCE++ take `log pi_old - log ref` (k1) off
the reward of each token. Here the first policy is the engine's, `mu`, which sampled the tokens: the mean of k1 over
them is its KL divergence from the reference, and nothing is to be computed for it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ale.errors import PluginError
from ale.specs.trainer import TrainBatch
from ale_torch.losses import Estimator
from ale_torch.losses.masked import sampled_tokens
from ale_torch.losses.reference import estimate


def reward_kl(batch: TrainBatch, coef: float, estimator: Estimator = "k1") -> npt.NDArray[np.float64]:
    """Return what is taken off the reward of each token [N], `coef` times the estimate; 0 for tokens without loss, and
    for those that the policy did not sample. Raises `PluginError` where the batch has no reference."""
    out = np.zeros(len(batch.token_ids))
    if not coef:
        return out
    if batch.reference_logprobs is None:
        raise PluginError("A KL penalty in the reward needs TrainBatch.reference_logprobs; load a reference policy.")
    at = sampled_tokens(batch)
    engine, reference = (torch.from_numpy(x[at]).double() for x in (batch.engine_logprobs, batch.reference_logprobs))
    out[at] = coef * estimate(engine, reference, estimator).numpy()
    return out
