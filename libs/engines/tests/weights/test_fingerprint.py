"""The fingerprint finds weights that a server does not hold, whatever it merged, padded or cast."""

from __future__ import annotations

import json
from collections.abc import Callable
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


def of_torch(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> fingerprint.Fingerprint:
    """The sums as a server computes them."""
    whole = torch.int32 if dtype is torch.float32 else torch.int16
    return {name: summed(tensor.to(dtype).view(whole).to(torch.int64)) for name, tensor in tensors.items()}


def summed(bits: torch.Tensor) -> fingerprint.TensorSum:
    places = torch.meshgrid(*(torch.arange(size) for size in bits.shape), indexing="ij")
    moments = tuple(int((bits * place).sum()) % 2**64 for place in places)
    return fingerprint.TensorSum(tuple(bits.shape), int(bits.sum()) % 2**64, moments)


def sent(tensors: dict[str, torch.Tensor]) -> fingerprint.Fingerprint:
    return fingerprint.merge(of_torch(tensors, torch.float32), tied=False)


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
    merged = {name: tensor for name, tensor in tensors.items() if NAME not in name}
    qkv = torch.cat([tensors[f"{NAME}.{part}_proj.weight"] for part in "qkv"])
    merged |= {f"{NAME}.o_proj.weight": tensors[f"{NAME}.o_proj.weight"], f"{NAME}.qkv_proj.weight": qkv}
    read = fingerprint.of_folder(tmp_path, str(served).removeprefix("torch."), tied=True)
    assert read == of_torch(merged, served)
    merged["model.embed_tokens.weight"] = torch.nn.functional.pad(merged["model.embed_tokens.weight"], (0, 0, 0, 58))
    fingerprint.compare(read, of_torch(merged, served), "server 0")


def test_the_tensors_that_differ_are_named() -> None:
    other = weights() | {"model.embed_tokens.weight": torch.zeros(6, 4)}
    with pytest.raises(EngineError, match=r"server 0 says .* model\.embed_tokens\.weight differ"):
        fingerprint.compare(sent(weights()), sent(other), "server 0")


def experts(
    numbers: tuple[int, ...] = (0, 1, 2), names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
) -> dict[str, torch.Tensor]:
    """The matrices of experts, of which those of number i are the numbers[i]th."""
    generator = torch.Generator().manual_seed(1)
    made = [[torch.randn(*size, generator=generator) for size in ((5, 4), (5, 4), (4, 5))] for _ in numbers]
    return {
        f"mlp.experts.{expert}.{name}.weight": tensor
        for expert, number in enumerate(numbers)
        for name, tensor in zip(names, made[number], strict=True)
    }


def stacked() -> dict[str, torch.Tensor]:
    """Experts as vLLM and SGLang hold them: w13 [E, 2 * I, H], w2 [E, H, I]."""
    each = list(experts().values())
    w13 = torch.stack([torch.cat(each[first : first + 2]) for first in range(0, len(each), 3)])
    return {"mlp.experts.w13_weight": w13, "mlp.experts.w2_weight": torch.stack(each[2::3])}


@pytest.mark.parametrize("names", [("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")])
def test_experts_are_compared_with_the_stack_that_a_server_makes_of_them(names: tuple[str, str, str]) -> None:
    server = of_torch(stacked(), torch.float32)
    assert sent(experts(names=names)) == server
    fused = {
        name.replace("w13_weight", "gate_up_proj").replace("w2_weight", "down_proj"): tensor
        for name, tensor in stacked().items()
    }
    assert sent(fused) == server


def move_heads(tensors: dict[str, torch.Tensor]) -> None:
    q = f"{NAME}.q_proj.weight"
    tensors[q] = tensors[q].view(3, 2, 4).flip(0).reshape(6, 4)


def move_rows(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].roll(1, 0)


def move_columns(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}.o_proj.weight"] = tensors[f"{NAME}.o_proj.weight"].roll(1, 1)


def exchange_k_and_v(tensors: dict[str, torch.Tensor]) -> None:
    k, v = (f"{NAME}.{part}_proj.weight" for part in "kv")
    tensors[k], tensors[v] = tensors[v], tensors[k]


def exchange_experts(tensors: dict[str, torch.Tensor]) -> None:
    tensors |= experts((0, 2, 1))


def exchange_gates(tensors: dict[str, torch.Tensor]) -> None:
    gate, up = (f"mlp.experts.0.{name}.weight" for name in ("gate_proj", "up_proj"))
    tensors[gate], tensors[up] = tensors[up], tensors[gate]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (move_heads, "qkv_proj"), (exchange_k_and_v, "qkv_proj"), (move_rows, "embed_tokens"),
        (move_columns, "o_proj"), (exchange_experts, r"w13_weight, mlp\.experts\.w2_weight"),
        (exchange_gates, "w13_weight"),
    ],
)  # fmt: skip
def test_values_in_another_order_are_found(change: Callable[[dict[str, torch.Tensor]], None], named: str) -> None:
    tensors = weights() | experts()
    change(tensors)
    with pytest.raises(EngineError, match=rf"serves others: the values of .*{named}.* are in another order"):
        fingerprint.compare(sent(weights() | experts()), sent(tensors), "server 0")


def test_a_server_may_hold_a_tensor_in_an_order_of_its_own_as_long_as_it_keeps_it() -> None:
    """It transposes one; another one is zeros at the start, whose order cannot be seen then."""
    first, second = {"a": torch.randn(4, 6), "b": torch.zeros(6)}, {"a": torch.randn(4, 6), "b": torch.arange(6.0)}
    layout: dict[tuple[str, int], bool] = {}

    def held(tensors: dict[str, torch.Tensor]) -> fingerprint.Fingerprint:
        return sent({"a": tensors["a"].T.contiguous(), "b": tensors["b"].flip(0)})

    for tensors in (first, second):
        fingerprint.compare(sent(tensors), held(tensors), "server 0", layout)
    for tensors in (first, second):
        with pytest.raises(EngineError, match="the values of a"):
            fingerprint.compare(sent(tensors), sent(tensors), "server 0", layout)


def test_a_renamed_tensor_is_compared_in_its_order_too() -> None:
    tensors = {"a": torch.randn(4, 6), "b": torch.randn(5)}
    fingerprint.compare(sent(tensors), sent({"x.a": tensors["a"], "b": tensors["b"]}), "server 0")
    with pytest.raises(EngineError, match="the values of a are in another order"):
        fingerprint.compare(sent(tensors), sent({"x.a": tensors["a"].flip(0), "b": tensors["b"]}), "server 0")


def test_a_server_that_renames_tensors_is_compared_by_their_sum() -> None:
    def whole(**totals: int) -> dict[str, fingerprint.TensorSum]:
        return {name: fingerprint.TensorSum((), total, ()) for name, total in totals.items()}

    folder = whole(a=1, b=2**64 - 1, same=5)
    fingerprint.compare(folder, whole(ab=0, same=5), "server 0")
    fingerprint.compare(folder | whole(**{"mamba.A_log": 3}), whole(ab=0, same=5) | whole(**{"mamba.A": 7}), "server 0")
    with pytest.raises(EngineError, match="a, ab, b differ"):
        fingerprint.compare(folder, whole(ab=1, same=5), "server 0")


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


def test_of_a_folder_those_files_are_read_that_transformers_reads(tmp_path: Path) -> None:
    for name in ("one", "two", "consolidated"):
        save_file({name: torch.ones(2)}, tmp_path / f"{name}.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"one": "one.safetensors", "two": "two.safetensors"}}))
    assert set(read_folder(tmp_path)) == {"one", "two"}
    save_file({"whole": torch.ones(2)}, tmp_path / "model.safetensors")
    assert set(read_folder(tmp_path)) == {"whole"}
    (tmp_path / "model.safetensors").unlink()
    index.write_text("[]")
    with pytest.raises(EngineError, match="cannot be read as the index of a model's shards"):
        read_folder(tmp_path)


def test_a_folder_without_weights_and_a_broken_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="holds no weights"):
        read_folder(tmp_path)
    (tmp_path / "m.safetensors").write_bytes(b"12345678 not a header")
    with pytest.raises(EngineError, match="cannot be read as safetensors"):
        read_folder(tmp_path)
