"""The settings that trainers on torch have in common."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ale.specs.driver import PluginConfig


class TrainerSettings(PluginConfig):
    """Settings of AdamW, of passes, and of where they run."""

    lr: float = Field(5e-4, gt=0, description="Learning rate of AdamW.")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first beta.")
    beta2: float = Field(0.95, ge=0, lt=1, description="AdamW's second beta.")
    eps: float = Field(1e-8, gt=0, description="AdamW's epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay, only for matrices.")
    max_grad_norm: float = Field(1.0, gt=0, description="Largest norm of the gradients; larger ones are scaled down.")
    micro_batch_tokens: int = Field(
        16384, gt=0, description="Positions in one forward and backward pass; fewer need less memory."
    )
    logit_chunk: int | None = Field(
        1024, gt=0, description="Positions whose logits are in memory at the same time; null: all of a pass."
    )
    gradient_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass: less memory, a third more time."
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="auto (GPUs if there are any, one a rank), cpu, cuda, cuda:1.",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Type that is computed in; weights and moments are kept in float32."
    )
    threads: int = Field(
        0, ge=0, description="CPU threads that each rank computes with; 0: torch's own choice, shared by the ranks."
    )
