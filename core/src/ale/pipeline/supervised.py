"""The supervised warm start: error-masked fine-tuning on demonstrations (Eqs. 1 and 2)."""

from __future__ import annotations

import math
import random

from ale.errors import AleError
from ale.pipeline.bootstrap import retokenize
from ale.pipeline.workbench import Workbench
from ale.run_config import SFTConfig
from ale.trajectory import Trajectory


async def warm_start(bench: Workbench, config: SFTConfig, demonstrations: list[Trajectory]) -> None:
    """Train on the demonstrations, then bring the weights to the engine."""
    assert bench.sft is not None
    # Without a reward are those of recordings: nothing has scored them.
    kept = [t for t in demonstrations if config.demonstrations.keep_failed or t.passed or t.reward is None]
    unscored = sum(t.reward is None for t in demonstrations)
    bench.progress.note(
        f"{len(kept)} of {len(demonstrations)} demonstrations are trained on"
        f" ({sum(t.passed for t in demonstrations)} pass their tests{f', {unscored} are of recordings' if unscored else ''})"
    )
    if not kept:
        raise AleError(
            "None of the demonstrations passes its tests, so there is nothing to train on (sft.demonstrations.keep_failed=true)."
        )
    data = [retokenize(t, bench.endpoint.tokenizer, bench.endpoint.form) for t in kept]
    rng = random.Random(bench.config.seed)
    order: list[Trajectory] = []
    bench.progress.stage("supervised", config.steps)
    with bench.timed("supervised"):
        for step in range(config.steps):
            while len(order) < config.batch_size:
                order.extend(rng.sample(data, len(data)))
            picked, order = order[: config.batch_size], order[config.batch_size :]
            batch = bench.sft.batch(picked)
            if batch is None:
                continue
            totals = await bench.backend.update(batch, bench.sft.loss, lr=learning_rate(config, step))
            metrics = bench.sft.metrics(totals)
            bench.finish_step("sft", step, metrics)
            bench.progress.numbers(loss=metrics["loss"])
            bench.progress.advance()
        await bench.publish()


def learning_rate(config: SFTConfig, step: int) -> float:
    """Linear warm-up, then a cosine from `lr` to a tenth of it."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
