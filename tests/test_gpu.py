"""These tests run the embedded engine and trainer on a GPU; with a GPU their suites use it too (device: auto)."""

from __future__ import annotations

from pathlib import Path

import pytest
from ale_command import TINY, ale, summary_of

from ale.store.run_store import RunStore

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def test_engine_and_trainer_agree_on_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(TINY.format(runs=tmp_path / "runs"))
    on_gpu = ("engine.device=cuda", "trainer.device=cuda")
    summary = summary_of(ale("run", file, *on_gpu, "--out", tmp_path / "run"))
    assert summary["status"] == "completed"
    with RunStore.open(tmp_path / "run") as store:
        metrics = store.metrics("rl")
    assert all(gap < 1e-3 for _, gap in metrics["mismatch_mean"])
    assert all(share == 0 for _, share in metrics["masked"])


@pytest.mark.parametrize("window", [None, 3])
def test_packed_attention_in_one_kernel_is_that_of_each_sequence(window: int | None) -> None:
    from ale_torch.training.attention import has_kernel, packed_attention

    torch.manual_seed(0)
    lengths = [5, 1, 9]
    shape = (1, 4, sum(lengths), 16)
    narrow = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    assert has_kernel(narrow[0])
    wide = [x.detach().float().requires_grad_() for x in narrow]
    outs = [
        packed_attention(torch.nn.Module(), *x, None, sequence_lengths=lengths, sliding_window=window)[0]
        for x in (narrow, wide)
    ]
    for out in outs:
        out.float().square().sum().backward()
    assert (outs[0].float() - outs[1]).abs().max() < 3e-2
    for one, other in zip(narrow, wide, strict=True):
        assert (one.grad.float() - other.grad).abs().max() < 0.1


async def test_megatron_on_a_gpu_computes_what_the_trainer_torch_computes(tmp_path: Path) -> None:
    from parallel_losses import algorithms, batch_of, learner
    from support.loss_samples import write_small_policy

    from ale.specs.driver import DriverContext
    from ale_trainer_megatron import MegatronTrainer
    from ale_trainer_torch import TorchTrainer

    model = write_small_policy(tmp_path / "model")
    one = TorchTrainer(TorchTrainer.Config(device="cuda"), DriverContext())
    other = MegatronTrainer(MegatronTrainer.Config(device="cuda"), DriverContext())
    algorithm = algorithms()["pg grpo kl"]
    batch = batch_of(algorithm, learner(model))
    async with one, other:
        await one.load(model)
        await other.load(model)
        for _ in range(3):
            expected = await one.update(batch, algorithm.loss, lr=1e-3)
            found = await other.update(batch, algorithm.loss, lr=1e-3)
            for metric in expected.keys() - {"seconds"}:
                assert found[metric] == pytest.approx(expected[metric], rel=1e-3, abs=1e-5), metric


async def test_a_trainer_that_sleeps_gives_its_memory_back_and_goes_on_as_it_was(tmp_path: Path) -> None:
    from parallel_losses import algorithms, batch_of, learner
    from support.loss_samples import write_small_policy

    from ale.specs.driver import DriverContext
    from ale_trainer_torch import TorchTrainer

    model = write_small_policy(tmp_path / "model")
    algorithm = algorithms()["pg grpo kl"]
    batch = batch_of(algorithm, learner(model))
    before = torch.cuda.memory_allocated()
    async with TorchTrainer(TorchTrainer.Config(device="cuda"), DriverContext()) as trainer:
        await trainer.load(model)
        await trainer.load(model, "reference")
        for _ in range(2):
            await trainer.update(batch, algorithm.loss, lr=1e-3)
            expected = [await trainer.logprobs(batch, role) for role in ("current", "reference")]
            awake = torch.cuda.memory_allocated() - before
            assert await trainer.sleep()
            assert torch.cuda.memory_allocated() - before < awake / 20
            found = [await trainer.logprobs(batch, role) for role in ("current", "reference")]
            assert all(bool((one == other).all()) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "settings",
    [
        "use: torch, dtype: bfloat16",
        "use: torch, lora: {rank: 8}, dtype: bfloat16",
        "use: torch, offload: true",
        "use: megatron",
        "use: megatron, dtype: bfloat16, gradient_checkpointing: true",
    ],
)
def test_other_ways_of_training_complete_a_run_on_a_gpu(settings: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    text = TINY.format(runs=tmp_path / "runs")
    file.write_text(text.replace("trainer: {use: torch,", f"trainer: {{device: cuda, {settings},"))
    assert summary_of(ale("run", file, "--out", tmp_path / "run"))["status"] == "completed"
