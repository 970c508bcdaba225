"""The pieces of the RL loop that need no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.sample_trajectory import build_trajectory

from ale.errors import TrainerError
from ale.registry.hooks import Hooks
from ale.specs.algorithm import Algorithm
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.trainer import Loss, LossInput, LossOutput, TrainBatch
from ale.trajectory import Score, Trajectory
from ale_train.batches import Credit, pack
from ale_train.config.rl import RLConfig
from ale_train.rl.collapse_guard import CollapseGuard
from ale_train.rl.train_step import PackedStep, learning_rate, pack_step, train_step


def test_the_learning_rate_falls_to_a_tenth_or_is_the_trainers() -> None:
    config = RLConfig(steps=11, lr=1.0)
    assert [round(learning_rate(config, s) or 0, 3) for s in (1, 6, 11)] == [1.0, 0.55, 0.1]
    assert learning_rate(RLConfig(steps=1, lr=2.0), 1) == 2.0
    assert learning_rate(RLConfig(), 1) is None


class Centered(Driver, Algorithm):
    """The reward less the mean of the step's; a loss that notes what it was asked to normalize."""

    api_version = ">=1.0,<1.2"
    old_logprobs = "recompute"

    def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch | None:
        value = {id(t): t.reward.value for t in trajectories if t.reward is not None}
        mean = sum(value.values()) / len(value)
        return pack(trajectories, lambda t, *_: Credit(value[id(t)] - mean, positive=value[id(t)] > mean))

    @property
    def loss(self) -> Loss:
        return Halving(self.old_logprobs != "recompute")


@dataclass(frozen=True)
class Halving(Loss):
    """Says that half of every batch is masked."""

    blind: bool = False

    def __call__(self, inputs: LossInput) -> LossOutput:
        raise AssertionError("nothing is trained here")

    def normalize(self, batch: TrainBatch) -> TrainBatch:
        assert self.blind or batch.old_logprobs is not None, "log-probabilities come first"
        return replace(batch, normalizer=batch.normalizer / 2)


async def logprobs(batch: TrainBatch, policy: str = "current") -> npt.NDArray[np.float32]:
    """A trainer that holds every token for certain."""
    return np.zeros(len(batch.token_ids), np.float32)


def bench_of(algorithm: Algorithm, logprobs: Callable[..., Any] = logprobs) -> Any:
    """What a step is packed with: an algorithm, and a trainer with these log-probabilities."""
    return SimpleNamespace(
        algorithm=algorithm, config=SimpleNamespace(seed=1), backend=SimpleNamespace(logprobs=logprobs)
    )


@pytest.mark.parametrize("updates", [1, 2, 5])
async def test_a_steps_advantages_are_worked_out_before_it_is_cut_into_updates(updates: int) -> None:
    """One task all solved and one all failed: each update of one of them has something to learn."""
    done = [
        replace(build_trajectory(f"{g}{i}", group=g), reward=Score(float(g == "solved"), g == "solved"))
        for g in ("solved", "failed")
        for i in range(3)
    ]
    bench = bench_of(Centered(PluginConfig(), DriverContext()))
    packed = await pack_step(bench, RLConfig(updates_per_step=updates), done, 1, 3)
    # Of each rollout's four tokens, version 4 sampled the last; the trainer's log-probabilities are 0.
    assert packed.metrics["mismatch_tokens"] == 6 * 3
    assert packed.metrics["mismatch_mean"] == pytest.approx((0.5 + 0.1 + 0.2) / 3)
    assert packed.metrics["mismatch_max"] == pytest.approx(0.5)
    assert len(packed.batches) == min(updates, 2)
    for batch in packed.batches:
        assert set(np.abs(batch.chunks.returns).tolist()) == {0.5}
        assert batch.normalizer == (batch.chunk_ids >= 0).sum() / 2
    assert sum(float(batch.chunks.returns.sum()) for batch in packed.batches) == 0


@pytest.mark.parametrize("bonus", [False, True])
async def test_a_part_without_returns_is_an_update_only_where_the_entropy_pulls(bonus: bool) -> None:
    @dataclass(frozen=True)
    class Pulling(Halving):
        entropy_gradient: bool = bonus

    class Even(Centered):
        @property
        def loss(self) -> Loss:
            return Pulling(blind=True)

    done = [replace(build_trajectory(f"r{i}"), reward=Score(1.0, True)) for i in range(4)]
    bench = bench_of(Even(PluginConfig(), DriverContext()))
    packed = await pack_step(bench, RLConfig(), done, 1, 3)
    assert len(packed.batches) == bonus


@pytest.mark.parametrize("old", ["engine", "none"])
async def test_one_trajectory_in_eight_is_compared_for_an_algorithm_without_the_trainers_logprobs(old: str) -> None:
    rewards = [float(i % 2) for i in range(17)]
    done = [replace(build_trajectory(f"r{i}"), reward=Score(r, r > 0)) for i, r in enumerate(rewards)]
    asked: list[int] = []

    async def count(batch: TrainBatch, policy: str = "current") -> npt.NDArray[np.float32]:
        asked.append(len(batch.lengths))
        return await logprobs(batch)

    algorithm = Centered(PluginConfig(), DriverContext())
    algorithm.old_logprobs = old
    bench = bench_of(algorithm, count)
    packed = await pack_step(bench, RLConfig(), done, 1, 3)
    assert asked == [3]
    assert packed.batches[0].old_logprobs is None, "the loss sees what it saw without the comparison"
    assert packed.metrics["mismatch_tokens"] == 3 * 3
    packed = await pack_step(bench, RLConfig(), done, 1, None)
    assert (packed.metrics, asked) == ({}, [3]), "the trainer no longer has the weights that sampled"


async def test_the_engine_is_compared_at_temperature_1() -> None:
    rewards = [float(i % 2) for i in range(17)]
    done = [replace(build_trajectory(f"r{i}"), reward=Score(r, r > 0)) for i, r in enumerate(rewards)]
    asked: list[tuple[int, float]] = []

    class Hot(Centered):
        def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch | None:
            made = super().batch(trajectories)
            return None if made is None else replace(made, temperature=0.5)

    async def note(batch: TrainBatch, policy: str = "current") -> npt.NDArray[np.float32]:
        asked.append((len(batch.lengths), batch.temperature))
        return await logprobs(batch)

    bench = bench_of(Hot(PluginConfig(), DriverContext()), note)
    packed = await pack_step(bench, RLConfig(), done, 1, 3)
    assert asked == [(17, 0.5), (3, 1.0)], "old log-probabilities, and those of one trajectory in eight"
    assert packed.batches[0].temperature == 0.5
    assert packed.metrics["mismatch_tokens"] == 3 * 3


async def test_an_update_without_a_return_is_not_made() -> None:
    done = [
        replace(build_trajectory(f"{g}{i}", group=g), reward=Score(value, value > 0.5))
        for g, values in (("even", (0.5, 0.5)), ("mixed", (0.0, 1.0)))
        for i, value in enumerate(values)
    ]
    algorithm = Centered(PluginConfig(), DriverContext())
    bench = bench_of(algorithm)
    packed = await pack_step(bench, RLConfig(updates_per_step=2), done, 1, 0)
    assert len(packed.batches) == 1, "it would be a step along the optimizer's momentum"
    algorithm.reference = True
    packed = await pack_step(bench, RLConfig(updates_per_step=2), done, 1, 0)
    assert len(packed.batches) == 2, "it is held near the reference"


async def test_a_metric_is_the_mean_over_the_updates_that_have_it() -> None:
    told = [{"loss": 1.0, "il_loss": 0.4}, {"loss": 2.0}, {"loss": 3.0}]

    async def update(batch: SimpleNamespace, loss: object, *, lr: object) -> int:
        return int(batch.number)

    bench = SimpleNamespace(
        hooks=Hooks(),
        backend=SimpleNamespace(update=update),
        algorithm=SimpleNamespace(loss=SimpleNamespace(metrics=lambda totals: told[totals])),
    )
    batches = [SimpleNamespace(number=i, metrics={"dropped_groups": 2.0} if i == 1 else {}) for i in range(3)]
    metrics = await train_step(bench, RLConfig(), PackedStep(batches, {"mismatch_max": 0.5}), 1)  # type: ignore[arg-type]
    assert metrics == {"dropped_groups": 2.0, "loss": 2.0, "il_loss": 0.4, "mismatch_max": 0.5, "updates": 3.0}


def test_a_collapsing_run_is_stopped_with_a_sentence() -> None:
    guard = CollapseGuard(0.02, "rl.lr")
    guard.check({"success": 0.8, "entropy": 0.01})
    for _ in range(4):
        guard.check({"success": 0.1, "entropy": 0.01})
    with pytest.raises(TrainerError, match=r"The policy is collapsing.*Lower rl\.lr"):
        guard.check({"success": 0.1, "entropy": 0.01})


def test_low_entropy_alone_or_a_bad_patch_alone_is_no_collapse() -> None:
    guard = CollapseGuard(0.02, "rl.lr")
    for success, entropy in [(0.9, 0.001), (0.1, 0.5)] * 10:
        guard.check({"success": success, "entropy": entropy})


def test_success_that_falls_because_rollouts_start_earlier_is_no_collapse() -> None:
    guard = CollapseGuard(0.02, "rl.lr")
    guard.check({"success": 1.0, "entropy": 0.01, "start_chunk": 6.0})
    for _ in range(10):
        guard.check({"success": 0.0, "entropy": 0.01, "start_chunk": 5.0})
        guard.check({"success": 0.1, "success_from_beginning": 0.0, "entropy": 0.01, "start_chunk": 2.5})
    guard.check({"success": 0.8, "success_from_beginning": 0.9, "entropy": 0.01, "start_chunk": 2.5})
    worse = {"success": 0.8, "success_from_beginning": 0.4, "entropy": 0.01, "start_chunk": 2.5}
    for _ in range(4):
        guard.check(worse)
    with pytest.raises(TrainerError, match=r"after a best of 0\.90"):
        guard.check(worse)


def test_a_guard_that_is_told_no_entropy_says_so_once() -> None:
    guard = CollapseGuard(0.02, "rl.lr")
    assert not any(guard.blind({"updates": 0.0}) for _ in range(9))
    assert [guard.blind({"updates": 1.0}) for _ in range(7)] == [False] * 4 + [True] + [False] * 2
    off = CollapseGuard(0.0, "rl.lr")
    assert not any(off.blind({"updates": 1.0}) for _ in range(9))


def test_one_update_without_entropy_does_not_make_a_guard_blind() -> None:
    """Of an expert alone, say."""
    guard = CollapseGuard(0.02, "rl.lr")
    assert not any(guard.blind({"updates": 1.0} | more) for more in ({}, {}, {"entropy": 0.3}, *[{}] * 9))


def test_healthy_entropy_ends_a_row_of_bad_steps_also_where_no_rollout_starts_at_the_beginning() -> None:
    guard = CollapseGuard(0.02, "rl.lr")
    guard.check({"success": 1.0, "entropy": 0.01})
    for _ in range(3):
        for _ in range(4):
            guard.check({"success": 0.1, "entropy": 0.01})
        guard.check({"success": 0.9, "entropy": 0.5, "start_chunk": 3.0})


async def test_each_epoch_trains_on_all_batches_of_the_step_and_observers_see_each_once() -> None:
    updated: list[str] = []
    seen: list[str] = []

    async def update(batch: str, loss: object, *, lr: float | None) -> dict[str, float]:
        updated.append(batch)
        return {"loss": float(len(updated))}

    batches = [SimpleNamespace(metrics={}, name=name) for name in "ab"]
    bench = SimpleNamespace(
        algorithm=SimpleNamespace(loss=SimpleNamespace(metrics=dict)),
        backend=SimpleNamespace(update=lambda batch, loss, lr: update(batch.name, loss, lr=lr)),
        hooks=SimpleNamespace(call=lambda name, step, batch: seen.append(batch.name)),
    )
    metrics = await train_step(bench, RLConfig(epochs=3), PackedStep(batches, {}), 1)  # type: ignore[arg-type]
    assert updated == ["a", "b"] * 3
    assert seen == ["a", "b"]
    assert metrics == {"loss": 3.5, "updates": 6.0}
