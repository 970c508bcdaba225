"""The metrics of an update: sums that add up over micro-batches and ranks, and the means computed from them.

All sums are over the M tokens with loss and in double precision: in single precision the square of a ratio of e^20
would swallow all others. `docs/metrics.md` explains each metric."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ale_torch.losses.ratios import gap


@torch.no_grad()
def ratio_sums(ratio: Tensor, logprobs: Tensor, old: Tensor) -> dict[str, Tensor]:
    """Sum up the tokens' ratios (their unit's) and the distance of the policy from the old one. All [M]."""
    ratio, logprobs, old = (x.double() for x in (ratio, logprobs, old))
    step = gap(logprobs, old)
    return {
        "ratio_sum": ratio.sum(),
        "ratio_square_sum": ratio.square().sum(),
        # Never negative and of low variance: exp(d) - 1 - d with d = log pi - log pi_old on samples of pi_old.
        "kl_sum": (torch.expm1(step) - step).sum(),
    }


@torch.no_grad()
def ratio_maxima(ratio: Tensor) -> dict[str, Tensor]:
    """Return the largest ratio of the tokens [M]; nothing without tokens."""
    return {"ratio_max": ratio.max()} if len(ratio) else {}


@torch.no_grad()
def side_sums(positive: Tensor, negative: Tensor, trajectories: Tensor) -> dict[str, Tensor]:
    """Count tokens and trajectories whose probability the loss raises (positive [M] bool) and lowers (negative [M]
    bool). trajectories [M] are whole in this micro-batch."""
    return {
        "trajectories": _different(trajectories),
        "positive_tokens": positive.sum(),
        "negative_tokens": negative.sum(),
        "positive_trajectory_count": _different(trajectories[positive]),
        "negative_trajectory_count": _different(trajectories[negative]),
    }


def common_metrics(totals: Mapping[str, float]) -> dict[str, float]:
    """Turn the sums above in an update's totals into readable metrics; other totals stay as they are."""
    out = dict(totals)
    tokens = max(1.0, out.get("loss_tokens", 0.0))
    if "entropy_sum" in out:
        out["entropy"] = out.pop("entropy_sum") / tokens
    for side in ("positive", "negative"):
        if f"{side}_tokens" in out:
            out[side] = out.pop(f"{side}_tokens") / tokens
            out[f"{side}_trajectories"] = out.pop(f"{side}_trajectory_count") / max(1.0, out["trajectories"])
    if "ratio_sum" in out:
        total, squares = out.pop("ratio_sum"), out.pop("ratio_square_sum")
        out["ratio"], out["ratio_std"] = mean_and_deviation(total, squares, tokens)
        out["effective_samples"] = total * total / (squares * tokens) if squares > 0 else 0.0
        out["kl_old"] = out.pop("kl_sum") / tokens
    if "correction_sum" in out:
        accepted = out.pop("accepted_tokens")
        count = max(1.0, accepted)
        out["correction"], out["correction_std"] = mean_and_deviation(
            out.pop("correction_sum"), out.pop("correction_square_sum"), count
        )
        out["corrected"] = out.pop("corrected_tokens") / count
        out["rejected"] = 1 - accepted / tokens
    if "kl_ref_sum" in out:
        out["kl_ref"] = out.pop("kl_ref_sum") / max(1.0, out.pop("kl_ref_tokens"))
    return out


def mean_and_deviation(total: float, squares: float, count: float) -> tuple[float, float]:
    """Compute mean and standard deviation from a sum and a sum of squares."""
    mean = total / count
    return mean, max(0.0, squares / count - mean * mean) ** 0.5


def _different(numbers: Tensor) -> Tensor:
    return torch.tensor(float(len(torch.unique(numbers))), dtype=torch.float64)
