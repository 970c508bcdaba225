"""Megatron with our losses, and in a run: two ranks that share a model come to what the trainer `torch` comes to."""

from __future__ import annotations

from pathlib import Path

import pytest
from ale_command import TINY, ale, summary_of
from parallel_losses import algorithms, batch_of, each_option_once, learner
from support.loss_samples import write_small_policy

from ale.specs.driver import DriverContext
from ale.store.run_store import RunStore
from ale_trainer_megatron import MegatronTrainer
from ale_trainer_torch import TorchTrainer


async def test_every_loss_has_the_same_value_gradient_norm_and_metrics(tmp_path: Path) -> None:
    model = write_small_policy(tmp_path / "model")
    settings = {"device": "cpu", "threads": 1, "micro_batch_tokens": 60}
    exact = learner(model)
    one = TorchTrainer(TorchTrainer.Config(**settings), DriverContext())
    other = MegatronTrainer(MegatronTrainer.Config(**settings, ranks=2, pipeline_parallel=2), DriverContext())
    async with one, other:
        await one.load(model)
        await other.load(model)
        known = algorithms()  # `test_exactness.py` has all combinations of their options
        for name, algorithm in ((name, known[name]) for name in each_option_once()):
            if algorithm.critic:
                continue
            batch = batch_of(algorithm, exact, imitated=name.endswith("imitation"))
            # A step of length 0: all see the same policy.
            expected = await one.update(batch, algorithm.loss, lr=0.0)
            found = await other.update(batch, algorithm.loss, lr=0.0)
            for metric in expected.keys() - {"seconds"}:
                assert found[metric] == pytest.approx(expected[metric], rel=1e-4, abs=1e-6), f"{name}: {metric}"


@pytest.mark.bwrap
@pytest.mark.slow
def test_a_run_trains_with_weights_that_reach_its_engine(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    text = TINY.format(runs=tmp_path / "runs").replace("heads: 2, kv_heads: 1", "heads: 2, kv_heads: 2")
    file.write_text(text.replace("use: torch, threads: 1}\nalgo", "use: megatron, ranks: 2, tensor_parallel: 2}\nalgo"))
    done = ale("run", file, "rl.checkpoint_every=1", "--out", tmp_path / "run")
    assert summary_of(done)["status"] == "completed"
    with RunStore.open(tmp_path / "run") as store:
        assert max(gap for _, gap in store.metrics("rl")["mismatch_max"]) < 1e-3
    # Its checkpoint begins a run of the other trainer.
    again = ("model.scratch=null", f"model.path={tmp_path / 'run' / 'checkpoints' / 'step_1'}", "trainer.use=torch")
    less = ("sft=null", "rl.steps=1")
    assert summary_of(ale("run", file, *again, *less, "--out", tmp_path / "again"))["status"] == "completed"
