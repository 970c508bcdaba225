"""Advantages from rewards: one number for each trajectory, which all of its tokens share, one more for each chunk where
there are rewards of steps, or one for each token where a KL penalty is in the reward.

What others call the normalization of advantages (`norm_adv_by_std_in_grpo`, `scale_rewards`) is `scale` here, in
`_of_group`; `RULES` of `variants.py` says which scale each variant has. `normalization` is the mean of the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

from ale.specs.trainer import TrainBatch
from ale.trajectory import Trajectory
from ale_pg.variants import GROUP_BASELINES, Baseline, Scale, Settings
from ale_torch.losses.step_rewards import states_of, step_returns
from ale_torch.losses.token_order import in_order

Numbers = npt.NDArray[np.float64]
EPSILON = 1e-6
"""This is added to a standard deviation before dividing by it."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """Holds a value for each reward, in their order; `even` are the positions of those in even groups (value 0). With
    `token_std` a group is even only if all are: else it has the value that the whitening gives to 0."""

    values: list[float]
    even: frozenset[int] = frozenset()


def advantages(
    rewards: Sequence[float],
    groups: Sequence[Sequence[int]],
    baseline: Baseline,
    scale: Scale,
    tokens: Sequence[int] = (),
) -> Advantages:
    """Return reward minus baseline, divided by a standard deviation if `scale` names one.

    `groups` holds positions in `rewards`; `tokens` are the numbers of sampled tokens, for `token_std`. A group whose
    rewards are all equal (also a group of one rollout) does not differ from its baseline: its values are 0, and it is
    counted as even. The deviation of a group is that of a sample (n - 1), as usual in GRPO; the deviation of the batch
    is over the trajectories that are in no even group. With `token_std` (REINFORCE++, Hu et al., 2025,
    arXiv:2501.03262) all trajectories count, each as often as it has tokens, those of even groups with 0; the
    deviation is that of a sample, and the mean over the tokens is subtracted too.
    """
    values = [0.0] * len(rewards)
    even: set[int] = set()
    if baseline in GROUP_BASELINES:
        for members in groups:
            made = _of_group([rewards[i] for i in members], baseline, scale)
            if made is None:
                even |= set(members)
                continue
            for i, value in zip(members, made, strict=True):
                values[i] = value
    elif baseline == "none":
        values = list(rewards)
    elif rewards and min(rewards) != max(rewards):
        mean = fmean(rewards)
        values = [r - mean for r in rewards]
    if scale == "batch_std" and len(even) < len(values):
        deviation = pstdev([v for i, v in enumerate(values) if i not in even]) + EPSILON
        values = [v / deviation for v in values]
    if scale == "token_std" and len(even) < len(values):
        values = whiten(np.array(values), np.array(tokens)).tolist()
        even = set()
    return Advantages(values, frozenset(even))


def whiten(values: npt.NDArray[np.float64], counts: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return `(v - mean) / (std + eps)` of values, each of which counts as often as `counts` says [n]. The deviation is
    that of a sample; what counts once in all is left as it is."""
    total = counts.sum()
    if total <= 1:
        return values
    mean = (counts * values).sum() / total
    variance = (counts * (values - mean) ** 2).sum() / (total - 1)
    whitened: npt.NDArray[np.float64] = (values - mean) / (np.sqrt(variance) + EPSILON)
    return whitened


def step_advantages(
    trajectories: Sequence[Trajectory], groups: Sequence[Sequence[int]], settings: Settings
) -> Iterator[tuple[int, int, float]]:
    """Yield (number of the trajectory, position of the turn, advantage) for each turn that has a reward of its own.

    The returns of steps are compared as rewards of episodes are, by baseline and scale, within the chunks of a group of
    rollouts, or within those that acted in the same state (GiGPO, arXiv:2505.10978, Eq. 7)."""
    returns = [step_returns(t, settings.gamma) if settings.step_weight else [] for t in trajectories]
    places = [(i, k) for i, of_turns in enumerate(returns) for k in range(len(of_turns))]
    number = {place: n for n, place in enumerate(places)}
    if settings.step_groups == "state":
        together = states_of(trajectories, groups)
    else:
        together = [[(i, k) for i in members for k in range(len(returns[i]))] for members in groups]
    positions = [[number[place] for place in members if place in number] for members in together]
    values = [returns[i][k] for i, k in places]
    tokens = [len(trajectories[i].turns[k]) for i, k in places]
    made = advantages(values, [p for p in positions if p], settings.baseline, settings.scale, tokens)
    yield from ((i, k, value) for (i, k), value in zip(places, made.values, strict=True))


def _of_group(rewards: list[float], baseline: Baseline, scale: Scale) -> list[float] | None:
    """Return `(r - mean) / (std + eps)` (GRPO), `r - mean` (Dr. GRPO), `r - mean of others` (RLOO); None if even."""
    if min(rewards) == max(rewards):
        return None
    mean = fmean(rewards)
    n = len(rewards)
    # r - (sum - r) / (n - 1) = (r - mean) n / (n - 1)
    others = n / (n - 1) if baseline == "leave_one_out" else 1.0
    deviation = stdev(rewards) + EPSILON if scale == "group_std" else 1.0
    return [(r - mean) * others / deviation for r in rewards]


def token_advantages(batch: TrainBatch, rewards: Sequence[float], costs: Numbers, *, whitened: bool) -> Numbers:
    """Return the advantage of each token [N], 0 without loss, for a KL penalty in the reward (REINFORCE++, Hu et al.,
    2025, arXiv:2501.03262): a token pays for what follows it.

        A_t = R - sum over i >= t of cost_i

    `R` is the trajectory's signal and `cost_i` what the divergence takes off the reward of its i-th sampled token. The
    cost of a token before t is no consequence of token t, so it is not in its advantage. With `whitened` the advantages
    are whitened over all tokens. This holds without a baseline; a baseline compares whole trajectories, whose costs are
    summed. `rewards` are those of the trajectories, by their numbers
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
