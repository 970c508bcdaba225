"""Measures how far the engine's log-probabilities are from the trainer's, on tokens that the trainer's version sampled.

Both sides then have the same weights, so every difference is one of arithmetic, of templates or of weights that did not
arrive. With `d = log pi_old - log mu` of a token (trainer less engine) and its ratio `r = exp(d)`, over n tokens:

    mismatch_mean = mean |d|        mismatch_kl = mean (r - 1 - d), the k3 estimator of KL(mu, pi_old) in nats
    mismatch_max  = max |d|         mismatch_effective_samples = (sum r)^2 / (n sum r^2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ale.specs.trainer import TrainBatch

LARGEST_DIFFERENCE = 20.0
"""Differences are cut to +-20 nats, so that the numbers stay finite if one side gives a token the probability 0."""
PERCENTILES = (1, 5, 50, 95, 99)
FIRST_PLACES = 128
"""The first tokens of a sequence that are reported together; each further range is twice as long as all before it."""


@dataclass(frozen=True, slots=True)
class Differences:
    """The K tokens of a batch that were compared."""

    nats: npt.NDArray[np.float64]
    """Trainer less engine, [K], between -20 and 20."""
    place: npt.NDArray[np.int64]
    """The token's place in its sequence, from 0, [K]."""
    chunk: npt.NDArray[np.int64]
    """Which chunk of its trajectory it belongs to, from 1, [K]."""


def compare_logprobs(batch: TrainBatch, logprobs: npt.NDArray[np.float32], version: int) -> Differences:
    """Compare the trainer's `logprobs` [N] with the engine's on the tokens with loss that `version` sampled.

    There are none in a batch without `versions`."""
    if batch.versions is None:
        at = np.zeros(0, dtype=np.int64)
    else:
        at = np.flatnonzero((batch.chunk_ids >= 0) & (batch.versions == version))
    trainer, engine = logprobs[at].astype(np.float64), batch.engine_logprobs[at].astype(np.float64)
    with np.errstate(invalid="ignore"):
        nats = np.where(np.isinf(trainer) & (trainer == engine), 0.0, trainer - engine)
    starts = np.repeat(np.cumsum(batch.lengths) - batch.lengths, batch.lengths)
    return Differences(
        nats.clip(-LARGEST_DIFFERENCE, LARGEST_DIFFERENCE),
        (np.arange(len(batch.token_ids)) - starts)[at],
        batch.chunks.position[batch.chunk_ids[at]] + 1,
    )


def mismatch_metrics(parts: Sequence[Differences]) -> dict[str, float]:
    """Compute the metrics `mismatch_*` over all parts of a step; nothing without a token to compare.

    `mismatch_place/A-B` is the mean |d| of the tokens at places A to B of their sequence, `mismatch_chunk/A-B` the same
    by the chunk's number in its trajectory. `docs/metrics.md` explains each."""
    nats = np.concatenate([np.zeros(0), *(part.nats for part in parts)])
    if not len(nats):
        return {}
    ratio, size = np.exp(nats), np.abs(nats)
    percentiles = np.percentile(ratio, PERCENTILES)
    out = {
        "mismatch_tokens": float(len(nats)),
        "mismatch_mean": float(size.mean()),
        "mismatch_max": float(size.max()),
        # expm1 keeps the tiny differences of float32, of which exp(d) - 1 - d would leave only rounding.
        "mismatch_kl": float((np.expm1(nats) - nats).mean()),
        "mismatch_effective_samples": float(ratio.sum() ** 2 / (len(ratio) * np.square(ratio).sum())),
    }
    out |= {f"mismatch_ratio_p{p:02}": float(value) for p, value in zip(PERCENTILES, percentiles, strict=True)}
    place, chunk = (np.concatenate([getattr(part, name) for part in parts]) for name in ("place", "chunk"))
    for name, numbers, unit in (("place", place, FIRST_PLACES), ("chunk", chunk, 1)):
        start = _range_start(numbers // unit)
        for first in np.unique(start).tolist():
            low, high = unit * first, unit * max(1, 2 * first) - 1
            span = f"{low}-{high}" if low < high else f"{low}"
            out[f"mismatch_{name}/{span}"] = float(size[start == first].mean())
    return out


def _range_start(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the largest power of two that is not above each number; 0 for 0."""
    exponents = np.frexp(numbers.astype(np.float64))[1] - 1
    return np.where(numbers > 0, np.left_shift(1, np.maximum(exponents, 0)), 0).astype(np.int64)
