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
