"""The pieces of the RL loop that need no model."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from ale.errors import TrainerError
from ale.hooks import Hooks
from ale.pipeline.reinforce import CollapseGuard, Packed, disjoint_parts, learning_rate, train_step
from ale.run_config import RLConfig
from ale.trajectory import Trajectory


def test_the_learning_rate_falls_to_a_tenth_or_is_the_trainers() -> None:
    config = RLConfig(steps=11, lr=1.0)
    assert [round(learning_rate(config, s) or 0, 3) for s in (1, 6, 11)] == [1.0, 0.55, 0.1]
    assert learning_rate(RLConfig(steps=1, lr=2.0), 1) == 2.0
    assert learning_rate(RLConfig(), 1) is None


def test_parts_are_whole_groups_and_lose_nothing(trajectory: Callable[..., Trajectory]) -> None:
    all_of_them = [trajectory(f"{g}-{i}", group=str(g)) for g in range(5) for i in range(3)]
    parts = disjoint_parts(all_of_them, 2, seed=1)
    assert sorted(t.id for part in parts for t in part) == sorted(t.id for t in all_of_them)
    assert len(parts) == 2
    groups = [{t.group for t in part} for part in parts]
    assert not groups[0] & groups[1]
    assert len(disjoint_parts(all_of_them[:3], 4, seed=1)) == 1, "no part is empty"


async def test_a_metric_is_the_mean_over_the_updates_that_have_it() -> None:
    told = [{"loss": 1.0, "il_loss": 0.4}, {"loss": 2.0}, {"loss": 3.0}]
    published: list[int] = []

    async def update(batch: int, loss: object, *, lr: object) -> int:
        return batch

    async def publish() -> None:
        published.append(1)

    bench = SimpleNamespace(
        hooks=Hooks(), publish=publish, backend=SimpleNamespace(update=update),
        algorithm=SimpleNamespace(loss=None, metrics=lambda totals: told[totals]),
    )  # fmt: skip
    metrics = await train_step(bench, RLConfig(), Packed([0, 1, 2], 0), 1)  # type: ignore[arg-type, list-item]
    assert metrics == {"loss": 2.0, "il_loss": 0.4, "updates": 3.0}
    assert published == [1]


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
