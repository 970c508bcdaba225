"""The RL loop, synchronous: roll out with the newest policy, train, bring the weights back, again.

Each step: the algorithm plans rollouts for the next tasks; they run at once; what can be trusted is packed into a
batch; old log-probabilities are recomputed with the weights that sampled (where the algorithm asks for it); one or
more optimizer steps; the new weights go to the engine in memory. The policy version that initiated each sample is in
the trajectory; here it is the current one, so staleness is 0, but for `simulated_lag`: then a batch waits so many
steps before it is trained on, as it would in an asynchronous run, and the last ones are trained on after the last
rollouts.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ale.errors import AleError, TrainerError
from ale.pipeline.curation import CUT_OFF
from ale.pipeline.dynamic import with_spread
from ale.pipeline.evaluate import evaluate
from ale.pipeline.experts import Experts
from ale.pipeline.workbench import Workbench
from ale.rollout.episode import RL_STAGE, Stage
from ale.run_config import RLConfig
from ale.specs.algorithm import RolloutHistory
from ale.specs.trainer import TrainBatch
from ale.task import TRAIN, Task
from ale.trajectory import Trajectory

COLLAPSE_PATIENCE = 5


@dataclass(frozen=True)
class Packed:
    """A step's rollouts, ready to be trained on: a batch for each update, and the version of the policy that sampled."""

    batches: Sequence[TrainBatch]
    version: int


async def reinforce(bench: Workbench, config: RLConfig, tasks: Iterator[Task], experts: Experts | None = None) -> None:
    """Run all RL steps on these tasks, with the evaluations between them."""
    if bench.algorithm.reference:
        await bench.backend.keep_reference()
    guard = CollapseGuard(config.min_entropy, "rl.lr" if config.lr is not None else "trainer.lr")
    previous: list[Trajectory] = []
    waiting: deque[Packed] = deque()
    first = time.monotonic()
    for step in range(1, config.steps + 1):
        began = time.monotonic()
        with bench.timed("rollout"):
            roll = partial(roll_out, bench, step=step, previous=previous, experts=experts)
            previous = some(bench, await roll([next(tasks) for _ in range(config.prompts_per_step)]), step)
            previous, groups = await with_spread(previous, tasks, roll, config.resample_even_groups)
        rolled = time.monotonic()
        if not previous:
            bench.finish_step(RL_STAGE, step, bench.rollouts.metrics(RL_STAGE, step) | bench.pool_metrics())
            await _look_and_save(bench, config, step)
            continue
        metrics = rollout_metrics(previous, bench.engine.version)
        with bench.timed("training"):
            waiting.append(await pack_step(bench, config, previous, step))
            if len(waiting) > config.simulated_lag:
                metrics |= await train_oldest(bench, config, waiting, step)
        metrics |= {"rollout_s": rolled - began, "train_s": time.monotonic() - rolled}
        metrics["tokens_per_s"] = metrics["sampled_tokens"] / max(1e-9, rolled - began)
        if experts is not None and metrics.get("updates"):
            metrics.setdefault("experts", 0.0)  # an algorithm that has heard of none tells nothing of them
        metrics |= groups | bench.rollouts.metrics(RL_STAGE, step) | bench.pool_metrics()
        bench.finish_step(RL_STAGE, step, metrics)
        bench.progress.numbers(
            remaining_s=(time.monotonic() - first) / step * (config.steps - step),
            success=metrics["success"],
            entropy=metrics.get("entropy", 0.0),
            tokens_per_s=metrics["tokens_per_s"],
        )
        if guard.blind(metrics):
            bench.progress.note(
                f"rl.min_entropy watches nothing: the algorithm '{bench.config.algorithm.use}' tells no metric 'entropy'"
            )
        guard.check(metrics)
        await _look_and_save(bench, config, step)
    step = config.steps
    while waiting:
        step += 1
        with bench.timed("training"):
            bench.finish_step(RL_STAGE, step, await train_oldest(bench, config, waiting, step))


async def _look_and_save(bench: Workbench, config: RLConfig, step: int) -> None:
    every = bench.config.eval.every
    if every and step % every == 0 and step < config.steps:
        await evaluate(bench, f"step_{step}", step)
    if config.checkpoint_every and step % config.checkpoint_every == 0:
        await bench.backend.save(bench.folder / "checkpoints" / f"step_{step}")


async def roll_out(
    bench: Workbench, tasks: Sequence[Task], step: int, previous: Sequence[Trajectory], experts: Experts | None = None
) -> list[Trajectory]:
    """The rollouts of one step, those that can be trusted."""
    known = await experts.of(tasks, step) if experts is not None else {}
    lost = bench.rollouts.lost_replays
    history = RolloutHistory(step, bench.config.seed, previous, known, dict(lost))
    lost.clear()
    requests = bench.algorithm.plan(tasks, history)
    c = bench.config.rollout
    total = bench.config.rl.steps if bench.config.rl else step
    bench.progress.stage(f"RL step {step}/{total}", len(requests))
    return await bench.rollouts.run(requests, Stage(RL_STAGE, step, TRAIN, c.temperature, c.top_p, c.top_k))


def some(bench: Workbench, rollouts: list[Trajectory], step: int) -> list[Trajectory]:
    """The rollouts of a step; an empty list where replays of experts were lost, of which the algorithm hears when it plans the next
    step. Raises `AleError` where there are none for any other reason."""
    if not rollouts and not bench.rollouts.lost_replays.total():
        raise AleError(
            f"No rollout of step {step} can be trusted: {bench.store.reasons(RL_STAGE, step) or 'none was made'}. The "
            "trajectories of the run say more."
        )
    return rollouts


async def pack_step(
    bench: Workbench, config: RLConfig, trajectories: Sequence[Trajectory], step: int, recompute: bool = True
) -> Packed:
    """The batches of a step, with old log-probabilities: while the trainer's weights are still the ones that sampled. Where
    they are not (`recompute` False) those are the engine's."""
    parts = disjoint_parts(trajectories, config.updates_per_step, bench.config.seed + step)
    batches = [batch for part in parts if (batch := bench.algorithm.batch(part)) is not None]
    if bench.algorithm.old_logprobs == "recompute":
        olds = [await bench.backend.logprobs(b) if recompute else b.engine_logprobs for b in batches]
        batches = [replace(b, old_logprobs=old) for b, old in zip(batches, olds, strict=True)]
    if bench.algorithm.reference:
        batches = [replace(b, reference_logprobs=await bench.backend.reference_logprobs(b)) for b in batches]
    return Packed(batches, bench.engine.version)


async def train_oldest(bench: Workbench, config: RLConfig, waiting: deque[Packed], step: int) -> dict[str, float]:
    """Train on the rollouts that have waited longest; `step` is the one of the run."""
    packed = waiting.popleft()
    staleness = float(bench.engine.version - packed.version)
    return await train_step(bench, config, packed, step - config.simulated_lag) | {"staleness": staleness}


async def train_step(bench: Workbench, config: RLConfig, packed: Packed, step: int) -> dict[str, float]:
    """Update on the step's rollouts, publish; returns the algorithm's metrics (means over the updates that have them)."""
    batches = packed.batches
    collected: list[dict[str, float]] = []
    for batch in batches:
        bench.hooks.call("ale_batch_ready", step=step, batch=batch)
        totals = await bench.backend.update(batch, bench.algorithm.loss, lr=learning_rate(config, step))
        collected.append(bench.algorithm.metrics(totals))
    await bench.publish()
    found: dict[str, list[float]] = {}
    for metrics in collected:
        for name, value in metrics.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in sorted(found.items())} | {
        "updates": float(len(batches))
    }


def learning_rate(config: RLConfig, step: int) -> float | None:
    """`lr` at the first step, a tenth of it at the last, a line between; None for the trainer's own."""
    if config.lr is None:
        return None
    return config.lr * (1 - 0.9 * min(1.0, (step - 1) / max(1, config.steps - 1)))


def disjoint_parts(trajectories: Sequence[Trajectory], parts: int, seed: int) -> list[list[Trajectory]]:
    """Cut into at most `parts` parts of whole groups (the rollouts of one task stay together)."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group, []).append(trajectory)
    order = list(groups)
    random.Random(seed).shuffle(order)
    cut: list[list[Trajectory]] = [[] for _ in range(min(parts, len(order)))]
    for i, name in enumerate(order):
        cut[i % len(cut)].extend(groups[name])
    return cut


def rollout_metrics(trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
    """What the rollouts of a step looked like; `version` is the policy version that the step trained on."""
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
    """Stops a run whose policy has lost its entropy while it gets worse: more steps would only cost time.

    Success is that from the beginning: starts on an expert's path move, and success from them falls with each that is harder.
    """

    def __init__(self, min_entropy: float, lr: str) -> None:
        self._min_entropy = min_entropy
        self._lr = lr
        self._best = 0.0
        self._low = 0
        self._untold = 0

    def blind(self, metrics: Mapping[str, float]) -> bool:
        """Whether the first `COLLAPSE_PATIENCE` steps with updates told no entropy; true once."""
        if "entropy" in metrics:
            self._untold = COLLAPSE_PATIENCE
        elif metrics.get("updates") and self._min_entropy and self._untold < COLLAPSE_PATIENCE:
            self._untold += 1
            return self._untold == COLLAPSE_PATIENCE
        return False

    def check(self, metrics: Mapping[str, float]) -> None:
        """Look at one step's metrics. Raises `TrainerError` after `COLLAPSE_PATIENCE` bad steps in a row."""
        entropy = metrics.get("entropy")
        success = metrics.get("success_from_beginning", None if metrics.get("start_chunk") else metrics["success"])
        low = entropy is not None and entropy < self._min_entropy
        if success is None:  # nothing to compare; healthy entropy ends a row of bad steps all the same
            self._low = self._low if low else 0
            return
        self._best = max(self._best, success)
        self._low = self._low + 1 if low and success < 0.5 * self._best else 0
        if self._low >= COLLAPSE_PATIENCE:
            raise TrainerError(
                f"The policy is collapsing: for {COLLAPSE_PATIENCE} steps its entropy stayed below "
                f"{self._min_entropy:g} nats with success at {success:.2f} after a best of {self._best:.2f}. "
                f"Lower {self._lr}, or let failures weigh less (`ale config describe algorithm` lists what the algorithm has for "
                "that); rl.min_entropy=0 turns this guard off."
            )
