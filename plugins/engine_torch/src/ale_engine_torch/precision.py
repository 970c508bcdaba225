"""The numbers in which the engine computes, and how they are made to differ from the trainer's. Settings are read
without torch, which is imported only to choose a type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ale.specs.driver import PluginConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DtypeName = Literal["auto", "float32", "bfloat16"]
Quantization = Literal["int8"]


class Precision(PluginConfig):
    """The settings of the engine's arithmetic."""

    dtype: DtypeName = Field(
        "auto",
        description=(
            "Type of weights and cache. auto: float32 on the CPU; on a GPU, the type in which the folder was saved."
        ),
    )
    quantization: Quantization | None = Field(
        None,
        description=(
            "int8: the weights of the layers' projections are rounded to int8, one scale per output channel. It "
            "saves no memory here: it makes the engine differ from the trainer as a quantized one does."
        ),
    )
    logit_noise: float = Field(
        0.0,
        ge=0,
        description=(
            "Standard deviation of the noise added to every logit before sampling. It makes the engine differ from "
            "the trainer, to try what a loss does about that; 0: none."
        ),
    )


def choose_dtype(config: dict[str, Any], device: torch.device, name: DtypeName) -> torch.dtype:
    """`auto`: float32 on the CPU; on a GPU float32 if the model was saved so, otherwise bfloat16."""
    import torch

    if name == "auto":
        saved = config.get("dtype") or config.get("torch_dtype")
        name = "bfloat16" if device.type == "cuda" and saved != "float32" else "float32"
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def round_to_int8(weight: Tensor) -> Tensor:
    """Round a weight [out, in] to the values that int8 represents with one scale for each output channel: the largest
    magnitude of a row is 127. The result has the weight's type and is computed with as such (weight-only int8)."""
    scale = (weight.float().abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-12)
    return ((weight.float() / scale).round() * scale).to(weight.dtype)
