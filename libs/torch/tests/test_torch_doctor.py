"""What `ale doctor` says about torch, with and without GPUs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ale.cli.doctor import Finding
from ale_torch.doctor import check

GIB = 1 << 30


@pytest.fixture(autouse=True)
def build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def test_each_gpu_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    about = SimpleNamespace(name="NVIDIA H100", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: about)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (70 * GIB, 80 * GIB))
    build, *gpus = check()
    assert "built for CUDA 13.0" in build.text
    assert gpus[1] == Finding("GPU 1", "ok", "NVIDIA H100, 70.0 of 80.0 GiB free, capability 9.0")
    assert len(gpus) == 2


def test_a_build_for_gpus_without_one_says_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert list(check())[1].state == "missing"
    assert "nvidia-smi" in list(check())[1].mend
    monkeypatch.setattr(torch.version, "cuda", None)
    assert list(check())[1] == Finding("GPUs", "info", "none that torch can use")
