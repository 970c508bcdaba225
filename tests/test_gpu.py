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
    from ale_torch_training.attention import has_kernel, packed_attention

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


@pytest.mark.parametrize("settings", ["dtype: bfloat16", "lora: {rank: 8}, dtype: bfloat16", "offload: true"])
def test_other_ways_of_training_complete_a_run_on_a_gpu(settings: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    text = TINY.format(runs=tmp_path / "runs")
    file.write_text(text.replace("trainer: {use: torch,", f"trainer: {{use: torch, device: cuda, {settings},"))
    assert summary_of(ale("run", file, "--out", tmp_path / "run"))["status"] == "completed"
