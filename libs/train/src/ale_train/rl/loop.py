"""The loop of reinforcement learning: rollouts and training overlap, under a hard bound on staleness.

1. `RolloutProducer` admits groups into the buffer and makes their rollouts. `Training` takes batches from it, packs
   them, updates the policy and publishes the weights. Both run at once in one task group: if one fails, the run ends
   with its error.
2. `rl.async_ratio` is the bound: how many versions newer than the one that began a rollout the policy may be that is
   trained on it. `rl.ahead` is how many batches sampling may be ahead of training. With 0, the default, a step
   samples, waits for its last rollout, trains and publishes, and only then does the next step sample.
3. An evaluation measures one version: new weights are published when it has ended. Training goes on meanwhile.
4. A step that has begun to train is finished even if the run is stopped; then a checkpoint is left (`checkpoint.py`),
   also where it is stopped or fails in the evaluation after the last step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from ale.registry.foreign_code import no_silent_end
from ale.rollout.episode import RL_STAGE
from ale.task import Task
from ale.trajectory import Trajectory
from ale_train.config.rl import RLConfig
from ale_train.evaluation.evaluate import AFTER_RL, evaluate_policy
from ale_train.rl.checkpoint import LoopState, restore_newest, seconds_so_far, set_final_aside, write_checkpoint
from ale_train.rl.checks import note_short_context
from ale_train.rl.collapse_guard import CollapseGuard
from ale_train.rl.concurrency_limit import limited_slots
from ale_train.rl.device_sharing import DedicatedDevices, SharedDevices, TrainerDevices
from ale_train.rl.loop_metrics import LoopMetrics
from ale_train.rl.probe import probe
from ale_train.rl.rollout_metrics import rollout_metrics
from ale_train.rl.rollout_producer import RolloutProducer
from ale_train.rl.rollout_slots import RolloutSlots
from ale_train.rl.sample_buffer import OpenGroup, SampleBuffer
from ale_train.rl.train_step import load_reference, pack_step, train_step
from ale_train.rl.watchdog import Watchdog
from ale_train.workbench.publishing import publish
from ale_train.workbench.workbench import Workbench

LAST_S = 60.0
"""How long engines may take to fall asleep before the last checkpoint."""


async def reinforce(
    bench: Workbench, config: RLConfig, tasks: Iterator[Task], demonstrations: Sequence[Trajectory] = ()
) -> None:
    """Run all RL steps on these tasks, with the evaluations between and after them."""
    note_short_context(bench)
    producer = RolloutProducer(bench, config, make_buffer(config), tasks, demonstrations)
    async with limited_slots(bench, config) as slots:
        training = Training(bench, config, producer, slots)
        async with training.devices.held():
            state = await restore_newest(bench) if bench.store.resumed else None
            if state is None or not state.step:  # a fork has a checkpoint before its first step
                await load_reference(bench)
        if bench.store.resumed:
            done, version = (state.step, state.version) if state is not None else (0, bench.engine.version)
            bench.forget_evaluations_after(done)
            if done < config.steps:
                await asyncio.to_thread(set_final_aside, bench, done, version)
        if state is not None:
            training.restore(state)
        await probe(bench, config, training.devices)  # before anything else is at the engine
        await run_together(producer.run(), training.run())


async def run_together(*parts: Coroutine[Any, Any, None]) -> None:
    """Run the producer of rollouts and what uses them; if one fails, the other is cancelled and the error is raised."""

    async def run_guarded(part: Coroutine[Any, Any, None]) -> None:
        with no_silent_end("A part of the loop"):
            await part

    try:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(run_guarded(part))
    except BaseExceptionGroup as several:
        raise first_of(several) from several  # one mistake may fail every rollout; the user needs its sentence alone


def make_buffer(config: RLConfig) -> SampleBuffer[Trajectory]:
    """Return the empty buffer of a run."""
    return SampleBuffer(
        batch_size=config.prompts_per_step,
        async_ratio=config.async_ratio,
        ahead=config.batches_ahead,
        patience_s=config.patience_s,
        clock=time.monotonic,
    )


def make_devices(bench: Workbench, config: RLConfig, producer: RolloutProducer, watch: LoopMetrics) -> TrainerDevices:
    """Return the trainer's devices, with which engines sample in turns if `rl.multiplex` says so."""
    if not config.multiplex:
        return DedicatedDevices()
    return SharedDevices(
        bench.engine,
        count=config.multiplex,
        batch_size=config.prompts_per_step,
        ready=lambda: producer.ready,
        at_engines=lambda: watch.at_engines,
        sleep=bench.backend.sleep,
        enter=watch.trainer.enter,
        note=bench.progress.note,
    )


def first_of(several: BaseExceptionGroup) -> BaseException:
    """Return the first exception that is no group."""
    first: BaseException = several
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


class Training:
    """Takes batches from the producer, trains on them and publishes the weights, step by step."""

    def __init__(self, bench: Workbench, config: RLConfig, producer: RolloutProducer, slots: RolloutSlots) -> None:
        self._bench, self._config, self._producer = bench, config, producer
        self._guard = CollapseGuard(config.min_entropy, "rl.lr" if config.lr is not None else "trainer.lr")
        self._evaluation: asyncio.Task[None] | None = None
        self._evaluation_due: tuple[str, int] | None = None
        self._saved = 0
        """The step of the newest checkpoint."""
        self._between_steps = True
        """Whether trainer and producer are at the same step; while one is trained on they are not."""
        self._sampling_since = time.monotonic()
        """When sampling for the next step began."""
        self._sampled_before: frozenset[str] = frozenset()
        """The ids of the rollouts of earlier parts of the run that may be trained on."""
        self._watch = LoopMetrics(bench, config, slots, producer)
        self.devices = make_devices(bench, config, producer, self._watch)
        self._watchdog = Watchdog(
            bench,
            stall_s=config.stall_s,
            moves=self._watch.moves,
            achieved=self._watch.achieved,
            is_open=producer.is_open,
            facts=self._watch.states,
        )

    def restore(self, state: LoopState) -> None:
        """Go on after the step of a checkpoint."""
        bench = self._bench
        bench.algorithm.restore(state.algorithm)
        self._producer.restore(state.producer, state.step)
        self._guard.restore(state.guard)
        self._saved, self._evaluation_due = state.step, state.evaluation_due
        bench.evaluations.update(state.evaluations)
        for name, seconds in state.seconds.items():
            bench.seconds[name] = bench.seconds.get(name, 0.0) + seconds

    async def run(self) -> None:
        """Train all steps, and leave a checkpoint if the run is stopped."""
        began = self._sampling_since = time.monotonic()
        self._sampled_before = self._producer.stored_rollouts()
        first = self._producer.steps_done
        try:
            async with self._watch, asyncio.TaskGroup() as group:
                watching = group.create_task(self._watchdog.run())
                if self._evaluation_due is not None:
                    self._evaluate(group, *self._evaluation_due)
                for step in range(first + 1, self._config.steps + 1):
                    metrics = await self._step(step)
                    self._report(step, metrics, (time.monotonic() - began) / (step - first))
                    if step == first + 1 and not self._config.multiplex:
                        await probe(self._bench, self._config, self.devices)
                    await self._evaluate_if_due(group, step)
                    self._producer.admit_more()
                    if not self._config.async_ratio:  # else sampling never stops
                        self._sampling_since = time.monotonic()
                    if self._is_saved_after(step):
                        await self._save()
                    await self.devices.lend_if_due()
                    if step == first + 1 and self._config.multiplex:  # engines that lie there sample only now
                        await probe(self._bench, self._config, self.devices)
                if not self._watchdog.failed:
                    watching.cancel()
            async with self.devices.lent_to_evaluation(samples=self._bench.config.eval is not None):
                await evaluate_policy(self._bench, AFTER_RL, self._config.steps)
        except BaseException:
            stalled = self._watchdog.failed  # then it may hang again
            if self._between_steps and self._producer.steps_done > self._saved and not stalled:
                await self._save(last=True)
            raise
        finally:
            await self.devices.close()

    async def _step(self, step: int) -> dict[str, float]:
        """Wait for a batch, train on it and publish; returns the step's metrics."""
        began, version = time.monotonic(), self._bench.engine.version
        self._watch.trainer.enter("wait_data")
        groups = await self.devices.wait_for(self._producer.next_batch(step))
        waited = time.monotonic() - began
        training = asyncio.ensure_future(self._train(step, groups, version, waited))
        try:
            return await asyncio.shield(training)
        except asyncio.CancelledError:  # the step is finished all the same, so that the checkpoint has it
            if self._evaluation is not None:
                self._evaluation.cancel()
            if self._watchdog.failed:
                training.cancel()
            await training
            raise

    async def _train(
        self, step: int, groups: list[OpenGroup[Trajectory]], version: int, waited: float
    ) -> dict[str, float]:
        bench, config, watch, began = self._bench, self._config, self._watch, time.monotonic()
        watch.trainer.enter("logprobs")
        rollouts = self._producer.require_rollouts(groups, step)
        self._between_steps = False
        metrics: dict[str, float] = {}
        if rollouts:
            metrics = rollout_metrics(rollouts, version)
            with bench.stopwatch("training"):
                packed = await pack_step(bench, config, rollouts, step=step, version=version)
                watch.trainer.enter("update")
                metrics |= await train_step(bench, config, packed, step)
                if self._evaluation is not None:
                    watch.trainer.enter("wait_evaluation")
                    await self.devices.wait_for_evaluation(self._evaluation)
                with watch.publishing():
                    await publish(bench)
        await self.devices.finish_update(
            sampling_follows=step < config.steps or bench.config.eval is not None,
            save_follows=self._is_saved_after(step),
        )
        metrics |= self.devices.metrics()
        if rollouts:
            metrics |= {"rollout_s": waited, "train_s": time.monotonic() - began}
        metrics |= self._speed(rollouts)
        watch.trainer.enter("save")
        metrics |= self._producer.metrics() | bench.rollouts.metrics(RL_STAGE) | bench.resource_metrics()
        metrics |= watch.step_metrics(step, rollouts)
        trained = [(t.id, group.ordinal, bench.engine.version) for group in groups for t in group.rollouts or ()]
        bench.finish_step(RL_STAGE, step, metrics, trained)
        self._producer.close_step()
        self._between_steps = True
        return metrics

    def _speed(self, rollouts: Sequence[Trajectory]) -> dict[str, float]:
        """Return the tokens per second of a step's rollouts: over the time in which they were sampled, also while a
        checkpoint was written; in an asynchronous run, over the time since the step before. What an earlier part of
        the run has sampled does not count, and if that is all, there is no such metric."""
        ended = time.monotonic() if self._config.async_ratio else self._producer.finished_at
        began, self._sampling_since = self._sampling_since, ended
        made = [t.sampled_tokens for t in rollouts if t.id not in self._sampled_before]
        return {"tokens_per_s": sum(made) / max(1e-9, ended - began)} if made else {}

    def _is_saved_after(self, step: int) -> bool:
        every = self._config.checkpoint_every
        return step == self._config.steps or (every > 0 and step % every == 0)

    def _report(self, step: int, metrics: dict[str, float], seconds_a_step: float) -> None:
        """Show the metrics of a step. Raises `TrainerError` if the policy collapses."""
        bench, config = self._bench, self._config
        if "success" not in metrics:
            return
        bench.progress.numbers(
            remaining_s=seconds_a_step * (config.steps - step),
            success=metrics["success"],
            reward=metrics["reward"],
            entropy=metrics.get("entropy", 0.0),
            **{name: metrics[name] for name in ("tokens_per_s",) if name in metrics},
        )
        if self._guard.blind(metrics):
            bench.progress.note(
                f"rl.min_entropy has no effect: the algorithm '{bench.config.algorithm.use}' reports no metric "
                "'entropy'"
            )
        self._guard.check(metrics)

    async def _evaluate_if_due(self, group: asyncio.TaskGroup, step: int) -> None:
        every = self._bench.config.eval.every if self._bench.config.eval is not None else 0
        if every and step % every == 0 and step < self._config.steps:
            self._evaluate(group, f"step_{step}", step)
            if not self._config.async_ratio and self._evaluation is not None:
                await self.devices.lend_if_due()  # else it could wait for ever
                self._watch.trainer.enter("wait_evaluation")
                await self._evaluation

    def _evaluate(self, group: asyncio.TaskGroup, label: str, step: int) -> None:
        """Begin an evaluation."""

        async def evaluate() -> None:
            with no_silent_end("The evaluation"):
                await evaluate_policy(self._bench, label, step)
            self._evaluation_due = None

        self._evaluation_due = label, step
        self._evaluation = group.create_task(evaluate())

    async def _save(self, *, last: bool = False) -> None:
        """Write a checkpoint of the state as it is now; it is finished even if the run is stopped meanwhile. After the
        `last` one the run ends."""
        async with self.devices.held(LAST_S if last else None):
            await self._write_checkpoint()

    async def _write_checkpoint(self) -> None:
        self._watch.trainer.enter("save")
        bench, step, due = self._bench, self._producer.steps_done, self._evaluation_due
        if due is not None and due[1] != step:  # an evaluation measures one version, and the policy has a newer one
            bench.progress.note(f"The evaluation {due[0]} was broken off; it is not made again if the run goes on.")
            due = None
        state = LoopState(
            step=step,
            version=bench.engine.version,
            producer=self._producer.state(),
            algorithm=bench.algorithm.state(),
            guard=self._guard.state(),
            evaluations=dict(bench.evaluations),
            seconds=dict(bench.seconds),
            evaluation_due=due,
            total_s=seconds_so_far(bench.store),
        )
        saving = asyncio.ensure_future(write_checkpoint(bench, state, self._config.checkpoint_keep))
        try:
            await asyncio.shield(saving)
        finally:
            if self._watchdog.failed:  # the trainer may hang in it for good
                saving.cancel()
            await saving
            self._saved = step
