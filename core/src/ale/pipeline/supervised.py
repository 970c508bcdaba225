"""The supervised warm start: fine-tuning on demonstrations (Eqs. 1 and 2), in one stage or several.

1. `gathered`: the demonstrations of each stage, run in sandboxes once for all stages, or read.
2. `chosen`: the same in the policy's tokens, and of them what the stage is to be trained on.
3. `warm_start`: the stages, one after the other; the optimizer's state goes on from one to the next.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence

from ale.errors import AleError
from ale.pipeline.bootstrap import demonstrate, retokenize
from ale.pipeline.curation import curated
from ale.pipeline.given import read_demonstrations
from ale.pipeline.workbench import Workbench
from ale.specs.algorithm import Algorithm
from ale.supervised_config import SFTConfig, SFTStage, SFTSteps
from ale.trajectory import Trajectory

SFT_STAGE = "sft"


async def gathered(bench: Workbench, config: SFTConfig) -> list[list[Trajectory]]:
    """The demonstrations of each stage, of which several may share theirs. Raises `ConfigError` where files hold none."""
    tokenizer, form = bench.endpoint.tokenizer, bench.endpoint.form
    common: list[Trajectory] = []
    if config.runs_demonstrations:
        common = await demonstrate(bench, config.demonstrations.count)
    elif config.demonstrations.data:
        common = await asyncio.to_thread(read_demonstrations, config.demonstrations.data, tokenizer, form)
    return [
        await asyncio.to_thread(read_demonstrations, stage.data, tokenizer, form, key=f"sft.stages.{i}.data")
        if stage.data else common for i, stage in enumerate(config.plan)
    ]  # fmt: skip


def chosen(bench: Workbench, config: SFTConfig, stages: Sequence[list[Trajectory]]) -> list[list[Trajectory]]:
    """What each stage is trained on, in the policy's tokens. Raises `AleError` where nothing is left for one."""
    own: dict[int, Trajectory] = {}
    out = []
    for number, (stage, given) in enumerate(zip(config.plan, stages, strict=True)):
        # Without a reward are those of recordings: nothing has scored them.
        trusted = [t for t in given if config.demonstrations.keep_failed or t.passed or t.reward is None]
        for t in trusted:
            own[id(t)] = own.get(id(t)) or retokenize(t, bench.endpoint.tokenizer, bench.endpoint.form)
        kept, left_out = curated([own[id(t)] for t in trusted], stage.keep)
        unscored = sum(t.reward is None for t in given)
        where = f"stage {number + 1}: " if config.stages else ""
        bench.progress.note(
            f"{where}{len(kept)} of {len(given)} demonstrations are trained on"
            f" ({sum(t.passed for t in given)} pass their tests{f', {unscored} are of recordings' if unscored else ''})"
            f"{''.join(f', {n} left out by {key}' for key, n in left_out.items())}"
        )
        if not trusted:
            raise AleError(
                "None of the demonstrations passes its tests, so there is nothing to train on (sft.demonstrations.keep_failed=true)."
            )
        if not kept:
            reasons = ", ".join(f"{key} {n}" for key, n in left_out.items())
            raise AleError(
                f"sft.stages.{number}.keep leaves none of {len(trusted)} demonstrations ({reasons}); keep more of them."
            )
        out.append(kept)
    return out


async def warm_start(bench: Workbench, config: SFTConfig, stages: Sequence[list[Trajectory]]) -> None:
    """Train on what was chosen for each stage, then bring the weights to the engine."""
    first = 0
    with bench.timed("supervised"):
        for number, (stage, algorithm, data) in enumerate(zip(config.plan, bench.sft, stages, strict=True)):
            of_several = f" stage {number + 1}/{len(stages)}" if len(stages) > 1 else ""
            bench.progress.stage(f"supervised{of_several}", stage.steps)
            await _train(bench, stage, algorithm, data, number, first)
            first += stage.steps
        await bench.publish()


async def _train(
    bench: Workbench, stage: SFTStage, algorithm: Algorithm, data: Sequence[Trajectory], number: int, first: int
) -> None:
    """The steps of one stage, whose metrics are counted on from `first`."""
    rng = random.Random(bench.config.seed + number)
    order: list[Trajectory] = []
    trained = not stage.steps
    for step in range(stage.steps):
        while len(order) < stage.batch_size:
            order.extend(rng.sample(data, len(data)))
        picked, order = order[: stage.batch_size], order[stage.batch_size :]
        batch = algorithm.batch(picked)
        if batch is None:
            continue
        trained = True
        totals = await bench.backend.update(batch, algorithm.loss, lr=learning_rate(stage, step))
        metrics = algorithm.metrics(totals) | {"stage": number + 1.0}
        bench.finish_step(SFT_STAGE, first + step, metrics)
        bench.progress.numbers(loss=totals["loss"])
        bench.progress.advance()
    if not trained:
        where = f"sft.stages.{number}" if len(bench.sft) > 1 else "sft"
        raise AleError(
            f"{where}: no turn of its demonstrations carries loss; the masks of sft.algorithm take it off all."
        )


def learning_rate(config: SFTSteps, step: int) -> float:
    """Linear warm-up, then a cosine from `lr` to a tenth of it."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
