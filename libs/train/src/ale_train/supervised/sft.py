"""Supervised fine-tuning (SFT) of the policy on demonstrations (Eqs. 1 and 2), in one stage or several.

1. `gather_demonstrations` runs demonstrations in sandboxes, once for all stages, or reads them from files.
2. `select_data` turns them into the policy's tokens and selects those on which each stage trains.
3. `fine_tune` runs the stages one after the other; the optimizer's state passes from one stage to the next.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from functools import partial

from ale.errors import AleError
from ale.specs.algorithm import Algorithm
from ale.specs.trainer import TrainBatch
from ale.trajectory import Trajectory
from ale_train.batches.retokenization import retokenize
from ale_train.checkpoints.stage_checkpoints import StageCheckpoints
from ale_train.config.supervised import SFTConfig, SFTStage, SFTSteps
from ale_train.supervised.curation import curate
from ale_train.supervised.demonstrations import read_demonstrations, run_demonstrations
from ale_train.supervised.long_rows import describe_overlong, find_overlong, fit, longest_sequence
from ale_train.workbench.publishing import publish
from ale_train.workbench.workbench import Workbench

SFT_STAGE = "sft"


async def gather_demonstrations(bench: Workbench, config: SFTConfig) -> list[list[Trajectory]]:
    """Return the demonstrations of each stage; several stages may share theirs. Raises `ConfigError` if files hold
    none."""
    read = partial(read_demonstrations, tokenizer=bench.sessions.tokenizer, form=bench.sessions.form)
    read = partial(read, tools=config.demonstrations.tools)
    common: list[Trajectory] = []
    if config.runs_demonstrations:
        common = await run_demonstrations(bench, config.demonstrations.count)
    elif config.demonstrations.data:
        common = await asyncio.to_thread(read, config.demonstrations.data)
    return [
        await asyncio.to_thread(read, stage.data, key=f"sft.stages.{i}.data") if stage.data else common
        for i, stage in enumerate(config.plan)
    ]


def select_data(bench: Workbench, config: SFTConfig, stages: Sequence[list[Trajectory]]) -> list[list[Trajectory]]:
    """Return each stage's data in the policy's tokens. Raises `AleError` if nothing is left for a stage."""
    own: dict[int, Trajectory] = {}
    out = []
    for number, (stage, given) in enumerate(zip(config.plan, stages, strict=True)):
        # Trajectories of recordings and data sets have no reward, because nothing has scored them.
        trusted = [t for t in given if config.demonstrations.keep_failed or t.passed or t.reward is None]
        for t in trusted:
            own[id(t)] = own.get(id(t)) or retokenize(t, bench.sessions.tokenizer, bench.sessions.form)
        fitting = _fit([own[id(t)] for t in trusted], bench, config)
        kept, left_out = curate(fitting, stage.keep)
        unscored = sum(t.reward is None for t in given)
        where = f"stage {number + 1}: " if config.stages else ""
        bench.progress.note(
            f"{where}{len(kept)} of {len(given)} demonstrations are trained on"
            f" ({sum(t.passed for t in given)} pass their tests{f', {unscored} have no score' if unscored else ''})"
            f"{''.join(f', {n} left out by {key}' for key, n in left_out.items())}"
        )
        if not trusted:
            raise AleError(
                "None of the demonstrations passes its tests, so there is nothing to train on "
                "(sft.demonstrations.keep_failed=true)."
            )
        if not kept:
            reasons = ", ".join(f"{key} {n}" for key, n in left_out.items())
            raise AleError(
                f"sft.stages.{number}.keep leaves none of {len(trusted)} demonstrations ({reasons}); keep more of them."
            )
        out.append(kept)
    return out


def _fit(demonstrations: list[Trajectory], bench: Workbench, config: SFTConfig) -> list[Trajectory]:
    """Return the demonstrations with those that are too long dropped or cut off, which is noted. Raises `ConfigError`
    if they end the run."""
    longest = longest_sequence(config, bench.config.model)
    found = find_overlong(demonstrations, longest)
    if not found or longest is None:
        return demonstrations
    bench.progress.note(describe_overlong(found, len(demonstrations), longest, config.overlong))
    bench.store.add_event("overlong_demonstrations", overlong=config.overlong, longest=longest, found=found)
    return fit(demonstrations, longest, config.overlong)


async def fine_tune(bench: Workbench, config: SFTConfig, stages: Sequence[list[Trajectory]]) -> None:
    """Train on the data that was selected for each stage, then publish the weights to the engine."""
    first = 0
    checkpoints = StageCheckpoints(bench, SFT_STAGE, config.checkpoint_every, first=0)
    await checkpoints.resume()
    with bench.stopwatch("supervised"):
        algorithms = [bench.stage_algorithms[path] for path, _ in config.algorithms()]
        for number, (stage, algorithm, data) in enumerate(zip(config.plan, algorithms, stages, strict=True)):
            of_several = f" stage {number + 1}/{len(stages)}" if len(stages) > 1 else ""
            bench.progress.stage(f"supervised{of_several}", stage.steps)
            if not await _train(bench, checkpoints, stage, algorithm, data=data, number=number, first=first):
                where = f"sft.stages.{number}" if config.stages else "sft"
                raise AleError(
                    f"{where}: no turn of its demonstrations carries loss; the masks of sft.algorithm remove all of "
                    "them."
                )
            first += stage.steps
        await checkpoints.last(publish(bench))


async def _train(
    bench: Workbench,
    checkpoints: StageCheckpoints,
    stage: SFTStage,
    algorithm: Algorithm,
    data: Sequence[Trajectory],
    number: int,
    first: int,
) -> bool:
    """Run the steps of a stage that are not done yet; its metrics count them from `first`. Returns whether anything
    carries loss."""
    skip = min(stage.steps, max(0, checkpoints.done - first))
    rng = random.Random(bench.config.seed + number)
    order: list[Trajectory] = []
    trained = skip > 0 or not stage.steps

    async def train_step(step: int, batch: TrainBatch | None) -> bool:
        if batch is None:
            return False
        totals = await bench.backend.update(batch, algorithm.loss, lr=learning_rate(stage, step))
        metrics = {**algorithm.loss.metrics(totals), **batch.metrics, "stage": number + 1.0}
        bench.finish_step(SFT_STAGE, first + step, metrics)
        bench.progress.numbers(loss=totals["loss"])
        return True

    for step in range(stage.steps):
        while len(order) < stage.batch_size:
            order.extend(rng.sample(data, len(data)))
        picked, order = order[: stage.batch_size], order[stage.batch_size :]
        if step >= skip:
            trained |= await checkpoints.step(train_step(step, algorithm.batch(picked)))
        bench.progress.advance()
    return trained


def learning_rate(config: SFTSteps, step: int) -> float:
    """Return the learning rate: a linear warm-up, then a cosine from `lr` to a tenth of it."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
