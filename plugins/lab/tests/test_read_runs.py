"""Series are read from run folders as they are: metrics, starts, and the task that does worst."""

from __future__ import annotations

import math
from pathlib import Path

from ale.store.output_files import write_whole
from ale.store.run_store import SUMMARY_NAME, RunStore
from ale.trajectory import Score, Trajectory
from ale_lab.read_runs import mean_by_step, read_cost, read_run


def rollout(stage: str, step: int, task: str, passed: bool, start: int = 0, rejected: str | None = None) -> Trajectory:
    rollout.made += 1  # type: ignore[attr-defined]
    return Trajectory(
        id=f"t{rollout.made}",
        task_id=task,
        split="train",
        stage=stage,
        step=step,
        group="g",
        seed=0,
        policy_version=0,  # type: ignore[attr-defined]
        sequences=(),
        chunks=(),
        reward=Score(float(passed), passed),
        start_chunk=start,
        rejected=rejected,
    )


rollout.made = 0  # type: ignore[attr-defined]


def test_a_run_folder_becomes_series(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path)
    store.add_metrics("rl", 2, {"success": 0.5, "grad_norm": math.nan})
    store.add_metrics("rl", 1, {"success": 0.25, "grad_norm": 3.0})
    store.add_metrics("eval", 0, {"success": 0.75})
    store.add_metrics("sft", 0, {"loss": 1.0})
    for t in (
        rollout("rl", 1, "a", True, 6),
        rollout("rl", 1, "a", False, 3),
        rollout("rl", 2, "a", False, 2),
        rollout("rl", 2, "a", False, 9, rejected="diverged"),
        rollout("eval", 0, "a", True),
        rollout("eval", 0, "a", True),
        rollout("eval", 0, "b", True),
        rollout("eval", 0, "b", False),
        rollout("eval", 0, "c", False, rejected="lost"),
    ):
        store.add_trajectory(t)
    store.add_event("crucial_fork", step=3, task="a", chunk=4)
    store.add_event("rollback", step=2, task="a", chunk=5)
    store.close()
    series = read_run(tmp_path)
    assert series["rl/success"] == [(1.0, 0.25), (2.0, 0.5)]
    assert series["rl/grad_norm"] == [(1.0, 3.0)], "what is no number is left out"
    assert series["rl/start_chunk"] == [(1.0, 4.5), (2.0, 2.0)]
    assert series["rl/fork"] == [(2.0, 0.5)], "what step 2 showed is found when step 3 is planned"
    assert series["eval/success"] == [(0.0, 0.75)]
    assert series["eval/minimum"] == [(0.0, 0.5)]
    assert not [name for name in series if name.startswith("sft")]


def test_a_run_without_rollouts_has_empty_series(tmp_path: Path) -> None:
    RunStore.create(tmp_path).close()
    assert read_run(tmp_path) == {"rl/start_chunk": [], "rl/fork": [], "eval/minimum": []}
    assert mean_by_step([]) == []


def test_the_cost_is_in_the_summary(tmp_path: Path) -> None:
    write_whole(tmp_path / SUMMARY_NAME, '{"seconds": {"total": 12.5, "rollout": 3}, "rollouts": 70}')
    assert read_cost(tmp_path) == (12.5, 70.0)
