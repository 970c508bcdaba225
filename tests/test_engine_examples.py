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
@pytest.mark.parametrize(("server", "trainer"), [("vllm", "torch"), ("sglang", "torch"), ("vllm", "megatron")])
def test_an_example_trains_with_weights_that_reach_its_server(server: str, trainer: str, tmp_path: Path) -> None:
    require_server(server)
    done = ale("run", f"examples/{server}_{trainer}.yaml", *SMALL, "--out", tmp_path / "run", cwd=REPOSITORY)
    assert summary_of(done)["status"] == "completed"
    with RunStore.open(tmp_path / "run") as store:
        rolled = [t for t in store.trajectories() if t.stage == "rl"]
        mismatch = dict(store.metrics("rl")["mismatch_max"])
    assert all(t.failure is None for t in rolled)
    # Weights that did not arrive would be apart by a thousand times as much.
    assert len(mismatch) == 2
    assert max(mismatch.values()) < 1e-2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fewer_rollouts_run_while_the_cache_of_their_server_is_short_of_room(tmp_path: Path) -> None:
    """1,536 tokens of cache are some four conversations."""
    require_server("vllm")
    small = "engine.arguments=['--block-size', '32', '--num-gpu-blocks-override', '48']"
    steps = [*SMALL, "rl.steps=4", "rl.prompts_per_step=6", "algorithm.group_size=8", "rollout.concurrency=48"]
    done = ale("run", "examples/vllm_torch.yaml", *steps, small, "--out", tmp_path / "run", cwd=REPOSITORY)
    assert summary_of(done)["status"] == "completed"
    with RunStore.open(tmp_path / "run") as store:
        limits = [value for _, value in store.metrics("rl")["in_flight/limit"]]
    assert 1 <= min(limits) < 48
