"""GRPO and two corrections of it use the clipped surrogate; each takes a different mean over the tokens of a batch.

Their advantages differ too (`advantages`): Dr. GRPO divides by no standard deviation, DAPO leaves even groups out.
"""

from __future__ import annotations

from torch import Tensor

from ale_pg.ppo import ppo_clip
from ale_pg.terms import Terms, even_shares, trajectory_shares


def grpo(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    trajectories: Tensor,
    normalizer: float,
    low: float = 0.2,
    high: float = 0.2,
) -> Terms:
    """Return Eq. 3 of Shao et al., 2024 (arXiv:2402.03300) without its KL term (`kl_coef` adds it): the mean over
    trajectories of their means over tokens. `normalizer` is the number of trajectories; tensors are [M]."""
    return ppo_clip(logprobs, old, advantages, trajectory_shares(logprobs, trajectories, normalizer), low, high)


def dr_grpo(
    logprobs: Tensor, old: Tensor, advantages: Tensor, normalizer: float, low: float = 0.2, high: float = 0.2
) -> Terms:
    """Return Dr. GRPO (Liu et al., 2025, arXiv:2503.20783): the mean over trajectories of their sums over tokens,
    divided by a constant. `normalizer` is the number of trajectories times that constant; tensors are [M]."""
    return ppo_clip(logprobs, old, advantages, even_shares(logprobs, normalizer), low, high)


def dapo(
    logprobs: Tensor, old: Tensor, advantages: Tensor, normalizer: float, low: float = 0.2, high: float = 0.28
) -> Terms:
    """Return Eq. 8 of Yu et al., 2025 (arXiv:2503.14476): the mean over the tokens of all trajectories, with an upper
    clip bound that is looser than the lower one. The paper writes the mean for one group; here, as is usual, it is
    over the batch. `normalizer` is the number of tokens; tensors are [M]."""
    return ppo_clip(logprobs, old, advantages, even_shares(logprobs, normalizer), low, high)
