"""This module computes each of our losses on a small model in double precision, also as one rank of several that share
the model."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from support.loss_samples import random_rollouts
from torch import Tensor
from torch.distributed.tensor import DTensor

from ale.specs.algorithm import Algorithm
from ale.specs.driver import DriverContext
from ale.specs.trainer import TrainBatch
from ale_ipa import IPA
from ale_pg import PolicyGradient
from ale_pg.variants import RULES
from ale_ppo import PPO
from ale_sft import SFT
from ale_torch.losses.likelihood_loss import LikelihoodLoss
from ale_torch.losses.settings import Correction
from ale_torch.ranks import World
from ale_trainer_torch.learner import Learner
from ale_trainer_torch.optimizer import Optimization

LEVELS = ("chunk", "token", "trajectory")
SIGNALS = ("signed", "raw", "group_centered")
NORMALIZATIONS = ("token", "chunk", "trajectory")


@dataclass(frozen=True)
class Found:
    """What a batch came to: its loss, the metrics of the loss function, the gradient of all weights end to end."""

    loss: float
    metrics: dict[str, float]
    gradient: Tensor


def algorithms() -> dict[str, Algorithm]:
    """IPA with every level x signal x normalization and with all levels apart, every policy gradient; some with a KL
    term and an entropy bonus, or a correction; PPO, supervised training, and the loss that an author begins with."""
    ipa: dict[str, dict[str, object]] = {}
    for level, signal, normalization in itertools.product(LEVELS, SIGNALS, NORMALIZATIONS):
        ipa[f"ipa {level} {signal} {normalization}"] = {
            "level": level,
            "return_signal": signal,
            "normalization": normalization,
        }
    for of_return, of_ratio, of_mask in itertools.product(LEVELS, LEVELS, LEVELS):
        if not of_return == of_ratio == of_mask:
            ipa[f"ipa return {of_return}, ratio {of_ratio}, mask {of_mask}"] = {
                "return_level": of_return,
                "ratio_level": of_ratio,
                "mask_level": of_mask,
            }
    ipa |= {f"ipa {level} kl": {"level": level, "kl_coef": 0.3, "entropy_coef": 0.2} for level in LEVELS}
    ipa |= {
        f"ipa {level} {normalization} imitation": {"level": level, "normalization": normalization, "kl_coef": 0.3}
        for level, normalization in itertools.product(LEVELS, NORMALIZATIONS)
    }
    made: dict[str, Algorithm] = {
        name: IPA(IPA.Config(mismatch_threshold=1.0, **settings), DriverContext()) for name, settings in ipa.items()
    }
    correction = Correction(weight="truncate", level="chunk", cap=1.1, reject=(0.9, 1.05), reject_level="token")
    for variant in RULES:
        for name, more in (
            ("", {}),
            (" kl", {"kl_coef": 0.3, "kl_estimator": "k2", "entropy_coef": 0.2}),
            (" corrected", {"correction": correction}),
        ):
            config = PolicyGradient.Config(variant=variant, **more)
            made[f"pg {variant}{name}"] = PolicyGradient(config, DriverContext())
    for name, settings in {
        "ppo": {},
        "ppo kl": {"reward_kl_coef": 0.1, "kl_coef": 0.3, "entropy_coef": 0.2, "dual_clip": 1.1, "vf_clip": None},
        "ppo corrected": {"correction": correction, "gamma": 0.9, "whiten": False},
    }.items():
        made[name] = PPO(PPO.Config(**settings), DriverContext())
    of_tokens = {"baseline": "none", "scale": "token_std", "reward_kl_coef": 0.3}
    made["pg of tokens"] = PolicyGradient(PolicyGradient.Config(variant="ppo_clip", **of_tokens), DriverContext())
    made["sft"] = SFT(SFT.Config(), DriverContext())
    made["likelihood"] = OnlyCredit(PolicyGradient.Config(variant="reinforce"), DriverContext())
    return made


class OnlyCredit(PolicyGradient):
    """An algorithm that only says how good each chunk was."""

    loss = LikelihoodLoss()


def each_option_once() -> list[str]:
    """Algorithms that have each variant and each option once, though not all of their combinations, which take their
    time."""
    apart = [f"ipa return {a}, ratio {b}, mask {c}" for a, b, c in itertools.permutations(LEVELS)]
    options = [*(f"ipa {level} kl" for level in LEVELS), *(f"ipa {level} token imitation" for level in LEVELS)]
    of_ipa = [f"ipa {level} {signal} {level}" for level, signal in zip(LEVELS, SIGNALS, strict=True)]
    variants = [f"pg {variant} {option}" for variant in RULES for option in ("kl", "corrected")]
    others = ["pg grpo", "pg of tokens", "ppo", "ppo kl", "ppo corrected", "sft", "likelihood"]
    return [*of_ipa, *apart, *options, *variants, *others]


def learner(
    model: Path,
    *,
    packing: bool = True,
    budget: int = 100_000,
    logit_chunk: int | None = None,
    world: World | None = None,
) -> Learner:
    """The model in double precision, its value head with random weights."""
    how = Optimization(
        lr=1e-3,
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=0.0,
        max_grad_norm=1e9,
        micro_batch_tokens=budget,
        logit_chunk=logit_chunk,
        packing=packing,
        dtype=torch.float64,
        master_dtype=torch.float64,
        value_head=True,
    )
    made = Learner(model, torch.device("cpu"), how, world)
    with torch.no_grad():
        for parameter in made.model.value_head.parameters():
            parameter.fill_(0.05)  # at 0 it would have no gradient for what is below it
    return made


def batch_of(algorithm: Algorithm, with_learner: Learner, *, imitated: bool = False) -> TrainBatch:
    """A batch with old and reference log-probabilities that are not the current ones, as after an update.

    With `imitated`, a trajectory and the beginning of another are an expert's.
    """
    rollouts = random_rollouts(4)
    batch = algorithm.batch(rollouts)
    assert batch is not None
    if imitated:
        table = batch.chunks
        sampled = (table.trajectory != 1) & ((table.trajectory != 2) | (table.position > 0))
        batch = replace(batch, chunks=replace(table, sampled=sampled))
    now, trained = with_learner.logprobs(batch), batch.chunk_ids >= 0
    old, reference = (now + trained * 0.3 * wave(batch.token_ids) for wave in (np.sin, np.cos))
    if algorithm.reference:
        batch = replace(batch, reference_logprobs=reference.astype(np.float32))
    if algorithm.critic:
        batch = replace(batch, columns={"values": (0.2 * trained * np.sin(batch.token_ids)).astype(np.float32)})
    filled = replace(algorithm.credit(batch, rollouts), old_logprobs=old.astype(np.float32))
    return algorithm.loss.normalize(filled)


def total(by: Learner, batches: list[TrainBatch], algorithm: Algorithm) -> Found:
    """Loss, sums and gradient of several batches together; of a sharded model on all ranks."""
    by.optimizer.zero_grad(set_to_none=True)
    loss, metrics = 0.0, dict[str, float]()
    for batch in batches:
        found = by.accumulate(batch, algorithm.loss)
        loss += found.loss
        metrics = added(metrics, found.metrics)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in by.model.parameters()]
    whole = [g.full_tensor() if isinstance(g, DTensor) else g for g in gradients]
    return Found(loss, metrics, torch.cat([g.flatten() for g in whole]).clone())


def added(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Sums add up; of what is called a maximum the largest counts."""
    names = one.keys() | other.keys()
    return {
        n: max(one.get(n, 0.0), other.get(n, 0.0)) if n.endswith("_max") else one.get(n, 0.0) + other.get(n, 0.0)
        for n in names
    }


class RankOfLosses:
    """One rank of several that compute every algorithm's batch together, the model sharded among them."""

    def __init__(self, world: World, model: Path, budget: int) -> None:
        self._learner = learner(model, budget=budget, logit_chunk=7, world=world)
        self._world = world

    def compute(self, names: list[str]) -> dict[str, Found]:
        """What those algorithms came to; empty but on rank 0."""
        found: dict[str, Found] = {}
        known = algorithms()
        for name in names:
            algorithm = known[name]
            batch = batch_of(algorithm, self._learner, imitated=name.endswith("imitation"))
            found[name] = total(self._learner, [batch], algorithm)
        return found if self._world.rank == 0 else {}
