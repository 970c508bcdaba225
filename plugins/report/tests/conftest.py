"""What the report's tests share: a run to report, and what its page holds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.sample_trajectory import build_trajectory

from ale.store.output_files import write_whole
from ale.store.run_store import SUMMARY_NAME, RunStore
from ale.trajectory import Failure, Trajectory

Make = Callable[..., Trajectory]
EVIL = "</script><script>document.documentElement.dataset.pwned=1</script><!--<script><img src=x onerror=alert(1)>"


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    """Makes trajectories."""
    return build_trajectory


def page_data(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def fill_run(folder: Path, trajectory: Make) -> None:
    """A small run: two evaluations, SFT, three RL steps, one rejected and one failed rollout."""
    with RunStore.create(folder) as store:
        store.add_event("run_started", run_id="demo-1", seed=7)
        for step in (-1, 0, 3):
            passed = {-1: 0, 0: 1, 3: 3}[step]
            for i in range(4):
                store.add_trajectory(trajectory(f"e{step}.{i}", float(i < passed), stage="eval", step=step))
            store.add_metrics("eval", step, {"success": passed / 4, "episodes": 4, "success/count": passed / 4})
        for step in range(3):
            store.add_metrics("sft", step, {"loss": 2.0 - step, "entropy": 1.0, "grad_norm": math.inf})
        for step in (1, 2, 3):
            for i in range(5):
                store.add_trajectory(trajectory(f"r{step}.{i}", float(i % 2), step=step))
            metrics = {
                "success": 0.4,
                "reward": 0.4,
                "loss": 0.1,
                "entropy": 0.5,
                "chunks": 2.0,
                "illegal_calls": 0.1,
                "rollout_s": 2.0,
                "train_s": 1.0,
                "sampled_tokens": 20.0,
                "odd": 3.0,
                "mismatch_mean": 1e-7 * step,
                "mismatch_place/0-127": 1e-7,
                "mismatch_place/128-255": 2e-7 * step,
            }
            store.add_metrics("rl", step, metrics)
        store.add_trajectory(trajectory("no", step=2, rejected="illegal calls"))
        fault = trajectory("fault", step=2, failure=Failure("sandbox", EVIL, True), rejected="sandbox failure")
        store.add_trajectory(replace(fault, reward=None))


def finish(folder: Path, status: str = "completed", error: str | None = None) -> None:
    heldout = {
        label: {"success": s, "episodes": 4, "step": step}
        for label, s, step in (("before_sft", 0.0, -1), ("after_sft", 0.25, 0), ("after_rl", 0.75, 3))
    }
    summary = {
        "run_id": "demo-1",
        "status": status,
        "error": error,
        "seed": 7,
        "heldout": heldout,
        "seconds": {"rollout": 6.0, "training": 3.0, "total": 3725.0},
        "rollouts": 29,
        "sampled_tokens": 116,
        "tokens_per_s": 12.5,
        "peak_memory_mib": 512.0,
        "final_policy_version": 4,
        "failures": {"sandbox": 1},
    }
    write_whole(folder / SUMMARY_NAME, json.dumps(summary))
