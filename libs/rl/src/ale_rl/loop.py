"""The synchronous RL loop rolls out with the newest policy, trains, publishes the weights, and repeats.

In each step the algorithm plans rollouts for the next tasks, and these run concurrently. Trusted rollouts are packed
into a batch; if the algorithm asks for it, old log-probabilities are recomputed with the weights that sampled. Then the
trainer makes one or more updates, and the new weights are published to the engine. Rollouts are sampled by the current
policy, so their staleness is 0. With `simulated_lag` a batch waits that many steps before the trainer gets it, as in an
asynchronous run; the last batches are trained on after the last rollouts.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ale.errors import AleError, TrainerError
from ale.pipeline.workbench import Workbench
from ale.rollout.episode import PREPARE_STAGE, RL_STAGE, StageInfo
from ale.specs.algorithm import RolloutHistory
from ale.specs.trainer import TrainBatch
from ale.task import TRAIN, Task
from ale.trajectory import CUT_OFF, Trajectory
from ale_packing import split
from ale_rl.config import RLConfig
from ale_rl.dynamic_sampling import replace_even_groups
from ale_rl.mismatch import compare_engine
from ale_rl.resources import resource_metrics
from ale_training import mismatch_metrics, publish, retokenize

COLLAPSE_PATIENCE = 5


@dataclass(frozen=True)
class PackedStep:
    """Holds a step's rollouts ready for training: a batch for each update, the policy version that sampled them, and
    metrics of how they were packed."""

    batches: Sequence[TrainBatch]
    version: int
    metrics: Mapping[str, float] = field(default_factory=dict)


async def reinforce(
    bench: Workbench, config: RLConfig, tasks: Iterator[Task], demonstrations: Sequence[Trajectory] = ()
) -> None:
    """Run all RL steps on these tasks, with the evaluations between them."""
    await load_reference(bench)
    guard = CollapseGuard(config.min_entropy, "rl.lr" if config.lr is not None else "trainer.lr")
    previous: list[Trajectory] = []
    waiting: deque[PackedStep] = deque()
    first = time.monotonic()
    for step in range(1, config.steps + 1):
        began = time.monotonic()
        with bench.stopwatch("rollout"):
            roll = partial(roll_out, bench, config, step=step, previous=previous, demonstrations=demonstrations)
            previous = require_rollouts(bench, await roll([next(tasks) for _ in range(config.prompts_per_step)]), step)
            previous, groups = await replace_even_groups(previous, tasks, roll, config.resample_even_groups)
        rolled = time.monotonic()
        if not previous:
            bench.finish_step(RL_STAGE, step, bench.rollouts.metrics(RL_STAGE, step) | resource_metrics(bench))
            await _evaluate_and_save(bench, config, step)
            continue
        metrics = rollout_metrics(previous, bench.engine.version)
        with bench.stopwatch("training"):
            waiting.append(await pack_step(bench, config, previous, step, bench.engine.version))
            if len(waiting) > config.simulated_lag:
                metrics |= await train_oldest(bench, config, waiting, step)
        metrics |= {"rollout_s": rolled - began, "train_s": time.monotonic() - rolled}
        metrics["tokens_per_s"] = metrics["sampled_tokens"] / max(1e-9, rolled - began)
        metrics |= groups | bench.rollouts.metrics(RL_STAGE, step) | resource_metrics(bench)
        bench.finish_step(RL_STAGE, step, metrics)
        bench.progress.numbers(
            remaining_s=(time.monotonic() - first) / step * (config.steps - step),
            success=metrics["success"],
            entropy=metrics.get("entropy", 0.0),
            tokens_per_s=metrics["tokens_per_s"],
        )
        if guard.blind(metrics):
            bench.progress.note(
                f"rl.min_entropy has no effect: the algorithm '{bench.config.algorithm.use}' reports no metric "
                "'entropy'"
            )
        guard.check(metrics)
        await _evaluate_and_save(bench, config, step)
    step = config.steps
    while waiting:
        step += 1
        with bench.stopwatch("training"):
            bench.finish_step(RL_STAGE, step, await train_oldest(bench, config, waiting, step))


async def _evaluate_and_save(bench: Workbench, config: RLConfig, step: int) -> None:
    every = bench.config.eval.every if bench.config.eval is not None else 0
    if every and step % every == 0 and step < config.steps:
        await bench.evaluate(f"step_{step}", step)
    if config.checkpoint_every and step % config.checkpoint_every == 0:
        await bench.backend.save(bench.folder / "checkpoints" / f"step_{step}")


async def load_reference(bench: Workbench) -> None:
    """Make the current policy the trainer's reference, if the algorithm uses one."""
    if bench.algorithm.reference:
        assert bench.policy_folder is not None, "RL begins with a policy that was loaded or saved"
        await bench.backend.load(bench.policy_folder, "reference")


async def roll_out(
    bench: Workbench,
    config: RLConfig,
    tasks: Sequence[Task],
    step: int,
    previous: Sequence[Trajectory],
    demonstrations: Sequence[Trajectory] = (),
) -> list[Trajectory]:
    """Make the rollouts of one step; return the trusted ones."""
    given_up = bench.rollouts.given_up
    history = RolloutHistory(
        step,
        bench.config.seed,
        previous,
        rejected=dict(given_up),
        demonstrations=demonstrations,
        demonstrator=bench.tasks.demonstrator,
        retokenize=lambda t: retokenize(t, bench.sessions.tokenizer, bench.sessions.form),
    )
    given_up.clear()
    while wanted := bench.algorithm.prepare(tasks, history):
        prepared = await bench.rollouts.run(wanted, StageInfo(PREPARE_STAGE, step, TRAIN, 1.0))
        history = replace(history, prepared=prepared)
    requests = bench.algorithm.plan(tasks, history)
    c = bench.config.rollout
    bench.progress.stage(f"RL step {step}/{config.steps}", len(requests))
    return await bench.rollouts.run(requests, StageInfo(RL_STAGE, step, TRAIN, c.temperature, c.top_p, c.top_k))


def require_rollouts(bench: Workbench, rollouts: list[Trajectory], step: int) -> list[Trajectory]:
    """Return the rollouts of a step. Raises `AleError` if there are none, unless some did not reach their start,
    because the algorithm reads about these when it plans the next step."""
    if not rollouts and not bench.rollouts.diverged:
        raise AleError(
            f"No rollout of step {step} can be trusted: {bench.store.reasons(RL_STAGE, step) or 'none was made'}. The "
            "trajectories of the run say more."
        )
    return rollouts


async def pack_step(
    bench: Workbench, config: RLConfig, trajectories: Sequence[Trajectory], step: int, version: int | None
) -> PackedStep:
    """Make the batches of a step, one for each update. The algorithm sees all rollouts at once, and its batch is split
    between groups. `version` is that of the trainer's weights, which sampled: old log-probabilities are computed with
    them, and compared with the engine's. If the trainer no longer has the weights that sampled, it is None, and old
    log-probabilities are the engine's."""
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
    for batch in parts:
        if not (batch.chunks.returns.any() or algorithm.reference or algorithm.critic):
            continue  # an update without a gradient would only follow the optimizer's momentum
        if algorithm.old_logprobs == "recompute":
            old = batch.engine_logprobs if version is None else await bench.backend.logprobs(batch)
            batch = replace(batch, old_logprobs=old)
        if version is not None:
            differences.append(await compare_engine(bench.backend, batch, version))
        batches.append(algorithm.loss.normalize(batch))
    return PackedStep(batches, bench.engine.version, mismatch_metrics(differences))


async def train_oldest(bench: Workbench, config: RLConfig, waiting: deque[PackedStep], step: int) -> dict[str, float]:
    """Train on the rollouts that have waited longest; `step` is the current step of the loop."""
    packed = waiting.popleft()
    staleness = float(bench.engine.version - packed.version)
    return await train_step(bench, config, packed, step - config.simulated_lag) | {"staleness": staleness}


async def train_step(bench: Workbench, config: RLConfig, packed: PackedStep, step: int) -> dict[str, float]:
    """Train on the step's rollouts and publish the weights; return the algorithm's metrics, each as a mean over the
    updates that have it."""
    batches = packed.batches
    collected: list[dict[str, float]] = []
    for number, batch in enumerate([*batches] * config.epochs):
        if number < len(batches):
            bench.hooks.call("ale_batch_ready", step=step, batch=batch)
        totals = await bench.backend.update(batch, bench.algorithm.loss, lr=learning_rate(config, step))
        collected.append({**bench.algorithm.loss.metrics(totals), **batch.metrics})
    await publish(bench)
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


def rollout_metrics(trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
    """Compute the metrics of a step's rollouts; `version` is the policy version that the step trained."""
    n = len(trajectories)
    chunks = [c for t in trajectories for c in t.chunks]
    own = [c for t in trajectories for c in t.turns if c.sampled]
    errors = Counter(c.error.kind for c in own if c.error is not None)
    selected: dict[str, list[bool]] = {}
    for t in trajectories:
        for section, use in t.made_with:
            selected.setdefault(f"success/{section}:{use}", []).append(t.passed)
    whole = [t.passed for t in trajectories if not t.start_chunk]
    if 0 < len(whole) < n:
        selected["success_from_beginning"] = whole
    return {name: sum(passed) / len(passed) for name, passed in selected.items()} | {
        "success": sum(t.passed for t in trajectories) / n,
        "reward": sum(t.reward.value for t in trajectories if t.reward is not None) / n,
        "rollouts": float(n),
        "chunks": len(chunks) / n,
        "chunk_tokens": sum(map(len, own)) / max(1, len(own)),
        "sampled_tokens": float(sum(t.sampled_tokens for t in trajectories)),
        "illegal_calls": errors["illegal_call"] / max(1, len(own)),
        "failed_executions": errors["execution_failed"] / max(1, len(own)),
        "branches": sum(max(0, len(t.sequences) - 1) for t in trajectories) / n,
        "side_calls": sum(c.side for c in chunks) / n,
        "changed_echoes": sum(t.changed_echoes for t in trajectories) / n,
        "budget_ended": sum(t.ended_by in CUT_OFF for t in trajectories) / n,
        "start_chunk": sum(t.start_chunk for t in trajectories) / n,
        "staleness": sum(version - t.policy_version for t in trajectories) / n,
        "episode_s": sum(t.seconds for t in trajectories) / n,
    }


class CollapseGuard:
    """Stops a run whose policy has lost its entropy and gets worse, because more steps would only cost time.

    It uses the success from the beginning of tasks, because other starts move to harder places."""

    def __init__(self, min_entropy: float, lr: str) -> None:
        self._min_entropy = min_entropy
        self._lr = lr
        self._best = 0.0
        self._low = 0
        self._untold = 0

    def blind(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the first `COLLAPSE_PATIENCE` steps with updates reported no entropy; true only once."""
        if "entropy" in metrics:
            self._untold = COLLAPSE_PATIENCE
        elif metrics.get("updates") and self._min_entropy and self._untold < COLLAPSE_PATIENCE:
            self._untold += 1
            return self._untold == COLLAPSE_PATIENCE
        return False

    def check(self, metrics: Mapping[str, float]) -> None:
        """Check one step's metrics. Raises `TrainerError` after `COLLAPSE_PATIENCE` bad steps in a row."""
        entropy = metrics.get("entropy")
        success = metrics.get("success_from_beginning", None if metrics.get("start_chunk") else metrics["success"])
        low = entropy is not None and entropy < self._min_entropy
        if success is None:  # without a success, only an entropy that is high enough ends a row of bad steps
            self._low = self._low if low else 0
            return
        self._best = max(self._best, success)
        self._low = self._low + 1 if low and success < 0.5 * self._best else 0
        if self._low >= COLLAPSE_PATIENCE:
            raise TrainerError(
                f"The policy is collapsing: for {COLLAPSE_PATIENCE} steps its entropy stayed below "
                f"{self._min_entropy:g} nats with success at {success:.2f} after a best of {self._best:.2f}. Lower "
                f"{self._lr}, or let failures weigh less (`ale config describe algorithm` lists what the algorithm has "
                "for that); rl.min_entropy=0 turns this guard off."
            )
