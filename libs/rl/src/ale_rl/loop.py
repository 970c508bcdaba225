"""The loop of reinforcement learning: rollouts and training overlap, under a hard bound on staleness.

1. `Producer` admits groups into the buffer and makes their rollouts; `train` takes batches from it, packs them, updates
   the policy and publishes the weights. Both run at once in one task group: if one fails, the run ends with its error.
2. `rl.async_ratio` is the bound: how many versions newer than the one that began a rollout the policy may be that is
   trained on it. `rl.ahead` is how many batches sampling may be ahead of training. With 0, the default, a step
   samples, waits for its last rollout, trains and publishes, and only then does the next step sample.
3. An evaluation measures one version: new weights are published when it has ended. Training goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from ale.pipeline.workbench import Workbench
from ale.rollout.episode import RL_STAGE
from ale.task import Task
from ale.trajectory import Trajectory
from ale_rl.buffer import OpenGroup, SampleBuffer
from ale_rl.collapse_guard import CollapseGuard
from ale_rl.config import RLConfig
from ale_rl.produce import Producer
from ale_rl.resources import resource_metrics
from ale_rl.rollout_metrics import rollout_metrics
from ale_rl.train_step import load_reference, pack_step, train_step
from ale_training import publish


async def reinforce(
    bench: Workbench, config: RLConfig, tasks: Iterator[Task], demonstrations: Sequence[Trajectory] = ()
) -> None:
    """Run all RL steps on these tasks, with the evaluations between them."""
    await load_reference(bench)
    buffer = make_buffer(config)
    producer = Producer(bench, config, buffer, tasks, demonstrations)
    await run_together(producer.run(), Training(bench, config, buffer, producer).run())


async def run_together(*halves: Coroutine[Any, Any, None]) -> None:
    """Run both halves of the loop; if one fails, the other is cancelled and the error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for half in halves:
                group.create_task(half)
    except BaseExceptionGroup as several:
        raise first_of(several) from several  # one mistake may fail every rollout; the user needs its sentence alone


def make_buffer(config: RLConfig) -> SampleBuffer[Trajectory]:
    """Return the empty buffer of a run."""
    ahead = min(1, config.async_ratio) if config.ahead is None else config.ahead
    return SampleBuffer(config.prompts_per_step, config.async_ratio, ahead, config.patience_s, time.monotonic)


def first_of(several: BaseExceptionGroup) -> BaseException:
    """Return the first exception that is no group."""
    first: BaseException = several
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


async def next_batch(buffer: SampleBuffer[Trajectory], producer: Producer, version: int) -> list[OpenGroup[Trajectory]]:
    """Wait until the buffer has a batch for the trainer, whose weights are `version`."""
    while True:
        producer.changed.clear()
        batch = buffer.take(version)
        if batch is not None:
            return batch
        try:
            async with asyncio.timeout(buffer.patience_left_s):
                await producer.changed.wait()
        except TimeoutError:
            producer.expire(version)


class Training:
    """The half of the loop that trains; see the module's docstring."""

    def __init__(
        self, bench: Workbench, config: RLConfig, buffer: SampleBuffer[Trajectory], producer: Producer
    ) -> None:
        self._bench, self._config, self._buffer, self._producer = bench, config, buffer, producer
        self._guard = CollapseGuard(config.min_entropy, "rl.lr" if config.lr is not None else "trainer.lr")
        self._evaluation: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Train all steps."""
        bench, first = self._bench, time.monotonic()
        async with asyncio.TaskGroup() as group:
            for step in range(1, self._config.steps + 1):
                groups, metrics = await self._step(step)
                version = bench.engine.version
                trained = [(t.id, group.ordinal, version) for group in groups for t in group.rollouts or ()]
                bench.finish_step(RL_STAGE, step, metrics, trained)
                self._report(step, metrics, (time.monotonic() - first) / step)
                await self._evaluate_and_save(group, step)
                self._producer.trained()

    async def _step(self, step: int) -> tuple[list[OpenGroup[Trajectory]], dict[str, float]]:
        """Wait for a batch, train on it and publish; returns the batch and the step's metrics."""
        bench, config = self._bench, self._config
        bench.progress.stage(f"RL step {step}/{config.steps}", config.prompts_per_step * bench.algorithm.group_size)
        began, version = time.monotonic(), bench.engine.version
        with bench.stopwatch("rollout"):
            groups = await next_batch(self._buffer, self._producer, version)
        rolled = time.monotonic()
        rollouts = self._producer.require_rollouts(groups, step)
        metrics = {}
        if rollouts:
            metrics = rollout_metrics(rollouts, version)
            with bench.stopwatch("training"):
                packed = await pack_step(bench, config, rollouts, step, version)
                metrics |= await train_step(bench, config, packed, step)
                if self._evaluation is not None:
                    await self._evaluation
                await publish(bench)
            metrics |= {"rollout_s": rolled - began, "train_s": time.monotonic() - rolled}
            metrics["tokens_per_s"] = metrics["sampled_tokens"] / max(1e-9, rolled - began)
        metrics |= self._producer.metrics() | bench.rollouts.metrics(RL_STAGE) | resource_metrics(bench)
        return groups, metrics

    def _report(self, step: int, metrics: dict[str, float], seconds_a_step: float) -> None:
        """Show the metrics of a step. Raises `TrainerError` if the policy collapses."""
        bench, config = self._bench, self._config
        if "success" not in metrics:
            return
        bench.progress.numbers(
            remaining_s=seconds_a_step * (config.steps - step),
            success=metrics["success"],
            entropy=metrics.get("entropy", 0.0),
            tokens_per_s=metrics["tokens_per_s"],
        )
        if self._guard.blind(metrics):
            bench.progress.note(
                f"rl.min_entropy has no effect: the algorithm '{bench.config.algorithm.use}' reports no metric "
                "'entropy'"
            )
        self._guard.check(metrics)

    async def _evaluate_and_save(self, group: asyncio.TaskGroup, step: int) -> None:
        bench, config = self._bench, self._config
        every = bench.config.eval.every if bench.config.eval is not None else 0
        if every and step % every == 0 and step < config.steps:
            self._evaluation = group.create_task(bench.evaluate(f"step_{step}", step))
            if not config.async_ratio:
                await self._evaluation
        if config.checkpoint_every and step % config.checkpoint_every == 0:
            await bench.backend.save(bench.folder / "checkpoints" / f"step_{step}")
