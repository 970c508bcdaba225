"""An adapter in PEFT's layout becomes the weights of a whole model."""

from __future__ import annotations

import glob
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ale.errors import EngineError
from ale_engines.weights.lora import whole_model

LAYER = "model.layers.0.self_attn.q_proj"


def write_adapter(folder: Path, layer: str = LAYER, rank: int = 2, **config: object) -> dict[str, torch.Tensor]:
    folder.mkdir()
    parts = {"A": torch.randn(rank, 6), "B": torch.randn(4, rank)}
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file(
        {f"base_model.model.{layer}.lora_{part}.weight": tensor for part, tensor in parts.items()},
        folder / "adapter_model.safetensors",
    )
    return parts


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    save_file({f"{LAYER}.weight": torch.randn(4, 6), "lm_head.weight": torch.randn(3, 6)}, folder / "m.safetensors")
    return folder


@pytest.mark.parametrize(("config", "scale"), [({}, 4.0), ({"use_rslora": True}, 8 / 2**0.5)])
async def test_b_times_a_is_added_to_the_weight(
    base: Path, tmp_path: Path, config: dict[str, object], scale: float
) -> None:
    parts = write_adapter(tmp_path / "adapter", **config)
    old = load_file(base / "m.safetensors")
    async with whole_model(tmp_path / "adapter", base, tmp_path) as folder:
        new = load_file(folder / "model.safetensors")
        torch.testing.assert_close(new[f"{LAYER}.weight"], old[f"{LAYER}.weight"] + scale * parts["B"] @ parts["A"])
        assert torch.equal(new["lm_head.weight"], old["lm_head.weight"])
    assert not folder.exists()


async def test_a_whole_model_is_taken_as_it_is(base: Path) -> None:
    async with whole_model(base, base, None) as folder:
        assert folder == base


@pytest.mark.parametrize(
    ("layer", "config", "message"),
    [
        ("model.layers.9.mlp", {}, "does not have"),
        ("lm_head", {}, r"shape \(4, 6\), but it is \(3, 6\)"),
        (LAYER, {"use_dora": True}, "sets use_dora"),
        (LAYER, {"r": "many"}, "not a LoRA adapter's configuration"),
    ],
)
async def test_an_adapter_that_does_not_fit_is_refused(
    base: Path, tmp_path: Path, layer: str, config: dict[str, object], message: str
) -> None:
    write_adapter(tmp_path / "adapter", layer, **config)
    with pytest.raises(EngineError, match=message):
        async with whole_model(tmp_path / "adapter", base, tmp_path):
            pass
    assert not glob.glob(f"{tmp_path}/merged-*")
