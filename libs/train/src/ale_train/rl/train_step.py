"""One step of training: packs rollouts into a batch for each update, and trains on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ale.specs.trainer import TrainBatch, TrainerBackend
from ale.trajectory import Trajectory
from ale_train.batches import select, split
from ale_train.batches.mismatch import Differences, compare_logprobs, mismatch_metrics
from ale_train.config.rl import RLConfig
from ale_train.workbench.workbench import Workbench

ONE_IN = 8
"""One trajectory in this many is compared if the algorithm does not use the trainer's log-probabilities."""


@dataclass(frozen=True)
class PackedStep:
    """Holds a step's rollouts ready for training: a batch for each update, and metrics of how they were packed."""

    batches: Sequence[TrainBatch]
    metrics: Mapping[str, float] = field(default_factory=dict)


async def load_reference(bench: Workbench) -> None:
    """Make the current policy the trainer's reference, if the algorithm uses one."""
    if bench.algorithm.reference:
        assert bench.policy_folder is not None, "RL begins with a policy that was loaded or saved"
        await bench.backend.load(bench.policy_folder, "reference")


async def pack_step(
    bench: Workbench, config: RLConfig, trajectories: Sequence[Trajectory], step: int, version: int | None
) -> PackedStep:
    """Make the batches of a step, one for each update. The algorithm sees all rollouts at once, and its batch is split
    between groups. `version` is that of the trainer's weights: old log-probabilities are computed with them, and
    compared with the engine's on the tokens that this version sampled. If the trainer's weights are not those of any
    version that sampled, it is None, and old log-probabilities are the engine's."""
    algorithm = bench.algorithm
    made = algorithm.batch(trajectories)
    if made is not None:
        if algorithm.reference:
            made = replace(made, reference_logprobs=await bench.backend.logprobs(made, "reference"))
        if algorithm.critic:
            made = replace(made, columns={**made.columns, "values": await bench.backend.values(made)})
        made = algorithm.credit(made, trajectories)
    parts = [] if made is None else split(made, config.updates_per_step, bench.config.seed + step)
    batches = []
    differences = []
    # These terms of a loss have a gradient also where all returns are 0.
    other_terms = algorithm.reference or algorithm.critic or algorithm.loss.entropy_gradient
    for batch in parts:
        if not (batch.chunks.returns.any() or other_terms):
            continue  # an update without a gradient would only follow the optimizer's momentum
        if algorithm.old_logprobs == "recompute":
            old = batch.engine_logprobs if version is None else await bench.backend.logprobs(batch)
            batch = replace(batch, old_logprobs=old)
        if version is not None:
            differences.append(await compare_engine(bench.backend, batch, version))
        batches.append(algorithm.loss.normalize(batch))
    return PackedStep(batches, mismatch_metrics(differences))


async def compare_engine(backend: TrainerBackend, batch: TrainBatch, version: int) -> Differences:
    """Compare the engine's log-probabilities in a batch with those of the trainer, whose weights are `version`'s.

    An algorithm that trains on old log-probabilities of the trainer has them for every token, so the comparison is
    free. For another one a forward pass over the whole batch would cost a third of its update: there, one trajectory in
    `ONE_IN` is compared."""
    old = batch.old_logprobs if batch.temperature == 1 else None  # the engine's are at temperature 1
    if old is None:
        batch = replace(batch, temperature=1.0)
        batch = select(batch, np.unique(batch.trajectory)[::ONE_IN].tolist())
        old = await backend.logprobs(batch)
    return compare_logprobs(batch, old, version)


async def train_step(bench: Workbench, config: RLConfig, packed: PackedStep, step: int) -> dict[str, float]:
    """Train on the step's rollouts; return the algorithm's metrics, each as a mean over the updates that have it."""
    batches = packed.batches
    collected: list[dict[str, float]] = []
    for number, batch in enumerate([*batches] * config.epochs):
        if number < len(batches):
            bench.hooks.call("ale_batch_ready", step=step, batch=batch)
        totals = await bench.backend.update(batch, bench.algorithm.loss, lr=learning_rate(config, step))
        collected.append({**bench.algorithm.loss.metrics(totals), **batch.metrics})
    found: dict[str, list[float]] = {}
    for metrics in collected:
        for name, value in metrics.items():
            found.setdefault(name, []).append(value)
    means = {name: sum(values) / len(values) for name, values in sorted(found.items())}
    return {**means, **packed.metrics, "updates": float(len(collected))}


def learning_rate(config: RLConfig, step: int) -> float | None:
    """Return `lr` at the first step, falling linearly to a tenth at the last; None for the trainer's own."""
    if config.lr is None:
        return None
    return config.lr * (1 - 0.9 * min(1.0, (step - 1) / max(1, config.steps - 1)))
