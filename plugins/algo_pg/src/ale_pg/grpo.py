"""GRPO and two of its corrections: the clipped surrogate, each with its own mean over the tokens of a batch.

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
    """Shao et al., 2024 (arXiv:2402.03300), Eq. 3 without its KL term (`kl_coef` adds it): the mean over trajectories of their means over
    tokens. `normalizer` is the number of trajectories; tensors [M]."""
    return ppo_clip(logprobs, old, advantages, trajectory_shares(logprobs, trajectories, normalizer), low, high)


def dr_grpo(
    logprobs: Tensor, old: Tensor, advantages: Tensor, normalizer: float, low: float = 0.2, high: float = 0.2
) -> Terms:
    """Liu et al., 2025 (arXiv:2503.20783), Dr. GRPO: the mean over trajectories of their sums over tokens, divided by a
    constant. `normalizer` is trajectories times that constant; tensors [M]."""
    return ppo_clip(logprobs, old, advantages, even_shares(logprobs, normalizer), low, high)


def dapo(
    logprobs: Tensor, old: Tensor, advantages: Tensor, normalizer: float, low: float = 0.2, high: float = 0.28
) -> Terms:
    """Yu et al., 2025 (arXiv:2503.14476), Eq. 8: the mean over the tokens of all trajectories, a bound above that is
    further away than the one below. The paper writes the mean for one group; here, as is usual, it is over the batch.
    `normalizer` is the number of tokens; tensors [M]."""
    return ppo_clip(logprobs, old, advantages, even_shares(logprobs, normalizer), low, high)
