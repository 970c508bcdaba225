"""The fingerprint finds weights that a server does not hold, whatever it merged, padded or cast."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ale.errors import EngineError
from ale_engines.weights import fingerprint
from ale_engines.weights.tensor_files import FORMATS, StoredTensor, cast, read_folder, write_file

NAME = "model.layers.0.self_attn"


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    names = [f"{NAME}.{part}_proj.weight" for part in "qkvo"] + ["model.embed_tokens.weight"]
    return {name: torch.randn(6, 4, generator=generator) for name in names}


def of_torch(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, int]:
    whole = torch.int32 if dtype is torch.float32 else torch.int16
    return {name: int(t.to(dtype).view(whole).sum(dtype=torch.int64)) % 2**64 for name, t in tensors.items()}


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("served", [torch.float32, torch.bfloat16, torch.float16])
def test_a_folder_has_the_fingerprint_of_what_a_server_makes_of_it(
    tmp_path: Path, stored: torch.dtype, served: torch.dtype
) -> None:
    tensors = {name: tensor.to(stored) for name, tensor in weights().items()}
    left_out = {
        "lm_head.weight": tensors["model.embed_tokens.weight"].clone(),
        f"{NAME}.rotary_emb.inv_freq": torch.ones(3),
    }
    save_file({**tensors, **left_out}, tmp_path / "m.safetensors")
    merged = {name: tensor for name, tensor in tensors.items() if "qkv" not in name and NAME not in name}
    qkv = torch.cat([tensors[f"{NAME}.{part}_proj.weight"] for part in "qkv"])
    merged |= {f"{NAME}.o_proj.weight": tensors[f"{NAME}.o_proj.weight"], f"{NAME}.qkv_proj.weight": qkv}
    merged["model.embed_tokens.weight"] = torch.nn.functional.pad(merged["model.embed_tokens.weight"], (0, 0, 0, 58))
    sent = fingerprint.of_folder(tmp_path, str(served).removeprefix("torch."), tied=True)
    assert sent == of_torch(merged, served)
    fingerprint.compare(sent, of_torch(merged, served), "server 0")


def test_the_tensors_that_differ_are_named() -> None:
    sent = fingerprint.merge(of_torch(weights(), torch.float32), tied=False)
    stale = sent | {"model.embed_tokens.weight": sent["model.embed_tokens.weight"] + 1}
    with pytest.raises(EngineError, match=r"server 0 says .* model\.embed_tokens\.weight differ"):
        fingerprint.compare(sent, stale, "server 0")


def test_a_server_that_renames_tensors_is_compared_by_their_sum() -> None:
    sent = {"a": 1, "b": 2**64 - 1, "same": 5}
    fingerprint.compare(sent, {"ab": 0, "same": 5}, "server 0")
    with pytest.raises(EngineError, match="a, ab, b differ"):
        fingerprint.compare(sent, {"ab": 1, "same": 5}, "server 0")


def test_casts_are_those_of_torch() -> None:
    values = torch.cat([torch.randn(5000), torch.tensor([0.0, -0.0, float("inf"), 1e-40, 65504.0])])
    for name, dtype in (("F16", torch.float16), ("BF16", torch.bfloat16)):
        ours = cast(StoredTensor("F32", values.numpy()), name).values
        assert np.array_equal(ours.view(np.uint16), values.to(dtype).view(torch.uint16).numpy())
        back = cast(StoredTensor(name, ours.view(FORMATS[name])), "F32").values
        assert np.array_equal(back, values.to(dtype).float().numpy())


def test_files_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    tensors = {
        "a": StoredTensor("BF16", np.arange(6, dtype=np.uint16).reshape(2, 3)),
        "b": StoredTensor("F32", np.ones((), dtype=np.float32)),
        "none": StoredTensor("F32", np.zeros((0, 4), dtype=np.float32)),
    }
    write_file(tmp_path / "m.safetensors", tensors)
    read = read_folder(tmp_path)
    assert {name: (t.dtype, t.values.tolist()) for name, t in read.items()} == {
        name: (t.dtype, t.values.tolist()) for name, t in tensors.items()
    }


def test_a_folder_without_weights_and_a_broken_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="holds no weights"):
        read_folder(tmp_path)
    (tmp_path / "m.safetensors").write_bytes(b"12345678 not a header")
    with pytest.raises(EngineError, match="cannot be read as safetensors"):
        read_folder(tmp_path)
