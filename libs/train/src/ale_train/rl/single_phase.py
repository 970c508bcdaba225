"""One phase of the loop alone, for debugging: `--only rollout` makes rollouts without training, and `--only train`
trains on a dump of rollouts.

A dump is a run folder that `--only rollout` wrote; it has the policy that sampled the rollouts under `model/initial`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

from ale.errors import ConfigError
from ale.rollout.episode import RL_STAGE
from ale.store.run_store import RunStore
from ale.trajectory import Trajectory
from ale_train.checkpoints.saved_policies import before_rl, most_trained
from ale_train.config.rl import RLConfig
from ale_train.evaluation.evaluate import AFTER_RL, BEFORE_RL, evaluate_policy
from ale_train.evaluation.task_counts import count_tasks
from ale_train.models.whole_folders import put_in_place
from ale_train.rl.checks import note_short_context
from ale_train.rl.concurrency_limit import limited_slots
from ale_train.rl.loop import make_buffer, run_together
from ale_train.rl.rollout_metrics import rollout_metrics
from ale_train.rl.rollout_producer import RolloutProducer
from ale_train.rl.task_selection import repeat_tasks
from ale_train.rl.train_step import load_reference, pack_step, train_step
from ale_train.workbench.publishing import publish
from ale_train.workbench.workbench import Workbench

OF_THE_LOOP = (
    "instances",
    "resample_even_groups",
    "async_ratio",
    "ahead",
    "patience_s",
    "min_entropy",
    "prompts_per_step",
    "checkpoint_every",
    "scoring_concurrency",
    "multiplex",
)
"""Training on a dump does not read these keys of `rl`."""
WITH_TRAINING = ("resample_even_groups", "async_ratio", "ahead", "multiplex")
"""These keys of `rl` act only where rollouts and training take place together."""


async def roll_out_only(bench: Workbench, config: RLConfig, source: Path | None) -> None:
    """Make the rollouts of `rl.steps` steps with one policy and store them."""
    folder = bench.config.model.path if source is None else most_trained(source)
    if folder is not None and bench.samples_policy:
        bench.progress.note(f"The policy is {folder}.")
        await bench.load_policy(folder, train=False)
        await asyncio.to_thread(_keep_policy, folder, bench.folder / "model" / "initial")
    else:
        await bench.engine.load_model(None, bench.sessions.tokenizer)
    await count_tasks(bench, rollouts=True)
    if idle := [f"rl.{name}" for name in WITH_TRAINING if name in config.model_fields_set]:
        bench.progress.note(f"{', '.join(idle)}: without effect here; every rollout is kept, and none is stale.")
    config = config.model_copy(update=dict.fromkeys(WITH_TRAINING, 0))
    note_short_context(bench)
    producer = RolloutProducer(bench, config, make_buffer(config), repeat_tasks(bench, config.instances))

    async def store_steps() -> None:
        for step in range(1, config.steps + 1):
            rollouts = producer.require_rollouts(await producer.next_batch(step), step)
            metrics = rollout_metrics(rollouts, bench.engine.version) if rollouts else {}
            metrics |= producer.spares.metrics() | {"in_flight/limit": float(slots.take_lowest())}
            bench.finish_step(RL_STAGE, step, metrics | bench.rollouts.metrics(RL_STAGE) | bench.resource_metrics())
            if rollouts:
                bench.progress.numbers(success=metrics["success"])
            producer.close_step()
            producer.admit_more()

    bench.sessions.sampling = producer.spares.sampling
    async with limited_slots(bench, config) as slots:
        await run_together(producer.run(), store_steps())


def _keep_policy(folder: Path, own: Path) -> None:
    """Copy the policy that samples into the run folder, for training on the dump; a dump that goes on has it."""
    if own.is_dir():
        return
    new = own.with_name(f".{own.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(folder, new)
    put_in_place(new, own)


def choose_steps(
    bench: Workbench, config: RLConfig, steps: Mapping[int, list[Trajectory]]
) -> dict[int, list[Trajectory]]:
    """Return the first `rl.steps` steps of a dump; all of them if the run file does not set `rl.steps`."""
    chosen = sorted(steps)[: config.steps if "steps" in config.model_fields_set else None]
    if "steps" in config.model_fields_set and config.steps != len(steps):
        trained = f"the first {len(chosen)} are trained on" if len(chosen) < len(steps) else "it has no more"
        bench.progress.note(f"rl.steps is {config.steps}, and the dump has {len(steps)} steps: {trained}.")
    return {step: steps[step] for step in chosen}


async def train_only(bench: Workbench, config: RLConfig, source: Path) -> None:
    """Train on the rollouts of another run, step by step, starting from the policy that sampled them."""
    folder = bench.config.model.path or before_rl(source)
    with RunStore.open(source) as dump:
        steps: dict[int, list[Trajectory]] = {}
        for trajectory in dump.trajectories("stage = ? AND rejected IS NULL", (RL_STAGE,)):
            steps.setdefault(trajectory.step, []).append(trajectory)
    if not steps:
        raise ConfigError(f"{source} holds no rollouts of the stage '{RL_STAGE}' to train on.")
    steps = choose_steps(bench, config, steps)
    if idle := [f"rl.{name}" for name in OF_THE_LOOP if name in config.model_fields_set]:
        bench.progress.note(f"{', '.join(idle)}: without effect here; a dump is trained on as it is.")
    await bench.load_policy(folder, train=True)
    await load_reference(bench)
    await evaluate_policy(bench, BEFORE_RL, 0)
    bench.progress.stage("training on the dump", len(steps))
    versions = sorted({t.policy_version for trajectories in steps.values() for t in trajectories})
    if len(versions) > 1 and bench.algorithm.old_logprobs == "recompute":
        bench.progress.note(
            f"The dump was sampled by {len(versions)} policies, but only one of them is available: old "
            "log-probabilities are the engine's, so that a mismatch of engine and trainer cannot be seen."
        )
    with bench.stopwatch("training"):  # before the first update, while the trainer still has the weights that sampled
        sampled_by = versions[0] if len(versions) == 1 else None
        packed = [await pack_step(bench, config, steps[step], step=step, version=sampled_by) for step in sorted(steps)]
    for done, (step, trajectories) in enumerate(sorted(steps.items())):
        with bench.stopwatch("training"):
            metrics = await train_step(bench, config, packed[done], step)
            await publish(bench)
        metrics |= rollout_metrics(trajectories, versions[0] + done)
        bench.finish_step(RL_STAGE, step, metrics)
        bench.progress.advance()
    await evaluate_policy(bench, AFTER_RL, max(steps, default=0))
    await bench.save("final")
