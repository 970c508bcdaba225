"""Generalized advantage estimation (Schulman et al., 2016, arXiv:1506.02438, Eqs. 11 and 16) over the tokens of a step.

`ale_torch.losses.token_order` defines which tokens a trajectory has, and their order. `V` after the last one is 0.

    delta_t = r_t + gamma V_{t+1} - V_t        A_t = delta_t + gamma lambda A_{t+1}        target_t = A_t + V_t
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
EPSILON = 1e-8
"""It is added to a variance before dividing by its root."""


def gae(rewards: Numbers, values: Numbers, gamma: float, lam: float) -> Numbers:
    """Return the advantages of one trajectory's tokens from their rewards and the values before them. All [n]."""
    advantages = np.zeros(len(rewards))
    following, next_value = 0.0, 0.0
    for t in range(len(rewards) - 1, -1, -1):
        delta = rewards[t] + gamma * next_value - values[t]
        advantages[t] = following = delta + gamma * lam * following
        next_value = values[t]
    return advantages


def whiten(values: Numbers) -> Numbers:
    """Return values of mean 0 and a sample's standard deviation of 1; of a single one, or of equal ones, zeros. [n]"""
    if len(values) < 2:
        return np.zeros_like(values)
    whitened: Numbers = (values - values.mean()) / np.sqrt(values.var(ddof=1) + EPSILON)
    return whitened
