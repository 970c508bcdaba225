"""The loop in halves, for debugging: rollouts without training, training on a dump of rollouts.

A dump is a run folder: `--only rollout` writes one, with the policy that sampled it under `model/initial`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from ale.errors import ConfigError
from ale.pipeline.bootstrap import load_model
from ale.pipeline.evaluate import evaluate
from ale.pipeline.experts import Experts
from ale.pipeline.instances import training_tasks
from ale.pipeline.reinforce import pack_step, roll_out, rollout_metrics, some, train_step
from ale.pipeline.workbench import Workbench
from ale.rollout.episode import RL_STAGE
from ale.run_config import RLConfig
from ale.store import RunStore
from ale.trajectory import Trajectory

POLICIES = ("final", "sft", "cpt", "initial")
"""Model folders of a run, the most trained first."""
OF_THE_LOOP = (
    "experts", "instances", "resample_even_groups", "simulated_lag", "min_entropy", "prompts_per_step", "checkpoint_every",
)  # fmt: skip
"""Keys of `rl` that training on a dump does not read."""


def most_trained(run: Path) -> Path:
    """The policy of a run that has come furthest: its last one, or, where it did not get there, what RL kept on the way, or
    what RL began with. Raises `ConfigError` where there is none."""
    final, *earlier = POLICIES
    return _first(run, [f"model/{final}", *_checkpoints(run), *(f"model/{name}" for name in earlier)])


def before_rl(run: Path) -> Path:
    """The policy with which a run's RL began. Raises `ConfigError` where there is none."""
    return _first(run, [f"model/{name}" for name in POLICIES[1:]])


def _first(run: Path, places: Sequence[str]) -> Path:
    for place in places:
        if (run / place / "config.json").is_file():
            return run / place
    raise ConfigError(
        f"{run} holds no policy (looked for {', '.join(places)}); name one: `ale eval {run} --model FOLDER`, or "
        "model.path=FOLDER in place of --from."
    )


def _checkpoints(run: Path) -> list[str]:
    """The folders of `rl.checkpoint_every`, the newest first. A trainer saves whole or not at all: what it was writing when it
    was killed has another name."""
    steps = [re.fullmatch(r"step_(\d+)", folder.name) for folder in (run / "checkpoints").glob("step_*")]
    return [f"checkpoints/step_{step}" for step in sorted((int(found[1]) for found in steps if found), reverse=True)]


async def roll_out_only(bench: Workbench, source: Path | None) -> None:
    """Make the rollouts of `rl.steps` steps with one policy and keep them."""
    config = bench.config.rl or RLConfig(steps=1)
    folder = bench.config.model.path if source is None else most_trained(source)
    if folder is not None and bench.endpoint.upstream is None:
        bench.progress.note(f"The policy is {folder}.")
        await load_model(bench, folder, train=False)
        shutil.copytree(folder, bench.folder / "model" / "initial", dirs_exist_ok=True)
    else:
        await bench.engine.load_model(None, bench.endpoint.tokenizer)
    if config.resample_even_groups:
        bench.progress.note("rl.resample_even_groups: without effect here; every rollout is kept.")
    tasks = training_tasks(bench, config.instances)
    experts = Experts(bench, config.experts) if config.experts else None
    previous: list[Trajectory] = []
    for step in range(1, config.steps + 1):
        with bench.timed("rollout"):
            chosen = [next(tasks) for _ in range(config.prompts_per_step)]
            previous = some(bench, await roll_out(bench, chosen, step, previous, experts), step)
        metrics = rollout_metrics(previous, bench.engine.version) if previous else {}
        metrics |= bench.rollouts.metrics(RL_STAGE, step) | bench.pool_metrics()
        bench.store.add_metrics(RL_STAGE, step, metrics)
        if previous:
            bench.progress.numbers(success=metrics["success"])


async def train_only(bench: Workbench, source: Path) -> None:
    """Train on the rollouts of another run, step by step, starting from the policy that sampled them."""
    config = bench.config.rl or RLConfig()
    folder = bench.config.model.path or before_rl(source)
    with RunStore.open(source) as dump:
        steps: dict[int, list[Trajectory]] = {}
        for trajectory in dump.trajectories("stage = ? AND rejected IS NULL", (RL_STAGE,)):
            steps.setdefault(trajectory.step, []).append(trajectory)
    if not steps:
        raise ConfigError(f"{source} holds no rollouts of the stage '{RL_STAGE}' to train on.")
    if idle := [f"rl.{name}" for name in OF_THE_LOOP if name in config.model_fields_set]:
        bench.progress.note(f"{', '.join(idle)}: without effect here; a dump is trained on as it is, nothing imitated.")
    await load_model(bench, folder, train=True)
    if bench.algorithm.reference:
        await bench.backend.keep_reference()
    await evaluate(bench, "before_rl", 0)
    bench.progress.stage("training on the dump", len(steps))
    versions = sorted({t.policy_version for trajectories in steps.values() for t in trajectories})
    if len(versions) > 1 and bench.algorithm.old_logprobs == "recompute":
        bench.progress.note(
            f"The dump was sampled by {len(versions)} policies, of which one is here: its old log-probabilities are the "
            "engine's, so that no mismatch of engine and trainer is seen."
        )
    with bench.timed("training"):  # before the first update, while the weights that sampled are here
        packed = [await pack_step(bench, config, steps[step], step, len(versions) == 1) for step in sorted(steps)]
    for done, (step, trajectories) in enumerate(sorted(steps.items())):
        with bench.timed("training"):
            metrics = await train_step(bench, config, packed[done], step)
        metrics |= rollout_metrics(trajectories, versions[0] + done)
        bench.finish_step(RL_STAGE, step, metrics)
        bench.progress.advance()
    await evaluate(bench, "after_rl", max(steps))
    await bench.backend.save(bench.folder / "model" / "final")
