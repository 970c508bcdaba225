"""The examples whose policy is sampled by vLLM and by SGLang, a few steps of each with the real server."""

from __future__ import annotations

from pathlib import Path

import pytest
from ale_command import REPOSITORY, ale, summary_of
from kit import require_server

from ale.store.run_store import RunStore

SMALL = [
    "sft.demonstrations.count=24",
    "sft.steps=6",
    "rl.steps=2",
    "rl.prompts_per_step=2",
    "algorithm.group_size=4",
    "eval=null",
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("example", ["sglang_torch", "vllm_megatron"])
def test_an_example_trains_with_weights_that_reach_its_server(example: str, tmp_path: Path) -> None:
    metrics = train(example, tmp_path / "run")
    assert len(metrics["mismatch_max"]) == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fewer_rollouts_run_while_the_cache_of_their_server_is_short_of_room(tmp_path: Path) -> None:
    """1,536 tokens of cache are some four conversations."""
    cache = "engine.arguments=['--block-size', '32', '--num-gpu-blocks-override', '48']"
    many = ["rl.steps=3", "rl.prompts_per_step=6", "algorithm.group_size=8", "rollout.concurrency=48"]
    metrics = train("vllm_torch", tmp_path / "run", *many, cache)
    assert len(metrics["mismatch_max"]) == 3
    assert 1 <= min(limit for _, limit in metrics["in_flight/limit"]) < 48


def train(example: str, out: Path, *overrides: str) -> dict[str, list[tuple[int, float]]]:
    """Run an example with few steps; return its metrics of reinforcement learning, of which it checks that the server
    had the trainer's weights."""
    require_server(example.partition("_")[0])
    done = ale("run", f"examples/{example}.yaml", *SMALL, *overrides, "--out", out, cwd=REPOSITORY)
    assert summary_of(done)["status"] == "completed"
    with RunStore.open(out) as store:
        rolled = [t for t in store.trajectories() if t.stage == "rl"]
        metrics = store.metrics("rl")
    assert all(t.failure is None for t in rolled)
    # Weights that did not arrive would be apart by a thousand times as much.
    assert max(mismatch for _, mismatch in metrics["mismatch_max"]) < 1e-2
    return metrics
