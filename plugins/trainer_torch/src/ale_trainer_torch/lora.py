"""LoRA, by `peft`: a model's weights are frozen, and beside its linear layers stand small matrices that are trained.

    W' = W + alpha / rank * B @ A

W [out, in], A [rank, in], B [out, rank], B starts at 0 (Hu et al., arXiv:2106.09685, section 4.1). Whoever gets weights
gets W'. A is drawn from a seed of its own, so that all ranks, and a run that is repeated, begin with the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ale.errors import ConfigError
from ale.specs.driver import PluginConfig

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER = "default"
PREFIX = "base_model.model."
"""The prefix of names in an adapter's file of `peft`."""


class LoraSettings(PluginConfig):
    """Settings of `trainer.lora`."""

    rank: int = Field(16, gt=0, description="Rows of A and columns of B.")
    alpha: float = Field(32, gt=0, description="B @ A is multiplied by alpha / rank.")
    target_modules: str | list[str] = Field(
        "all-linear", description="Names of layers, or a pattern; all-linear: every linear layer but the output's."
    )


def add_adapters(model: Any, settings: LoraSettings) -> None:
    """Freeze a model and put adapters into it, in float32. Raises `ConfigError` for layers that the model lacks."""
    import torch
    from peft import inject_adapter_in_model

    output = model.get_output_embeddings()
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        try:
            inject_adapter_in_model(_peft_config(settings), model, ADAPTER)
        except ValueError as error:
            raise ConfigError(
                f"trainer.lora.target_modules is {settings.target_modules!r}: {str(error).splitlines()[0]}"
            ) from error
    if model.get_output_embeddings() is not output:
        raise ConfigError(
            f"trainer.lora.target_modules is {settings.target_modules!r}, which takes in the output layer: its "
            "weights may be the embeddings' too, so it gets no adapter. Leave it out."
        )
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def merge(layers: dict[str, Any], name: str, weight: Tensor, whole: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the weight called `name` with its adapter's, summed in float32; as it is if it has none. `layers`: see
    `find_layers`. `whole` gathers a parameter from all ranks."""
    layer = layers.get(name)
    if layer is None:
        return weight
    down, up = (whole(part[ADAPTER].weight.detach()) for part in (layer.lora_A, layer.lora_B))
    added: Tensor = layer.scaling[ADAPTER] * (up @ down)
    return weight.float() + (added.T if layer.fan_in_fan_out else added)


def find_layers(model: Any) -> dict[str, Any]:
    """Return the layers with an adapter by the names of the weights that it changes, as in `state_dict`."""
    return {f"{name}.base_layer.weight": module for name, module in model.named_modules() if hasattr(module, "lora_A")}


def plain_name(name: str) -> str | None:
    """Return the Hugging Face name of an entry of `state_dict`; None for an adapter's."""
    return None if ".lora_" in name else name.replace(".base_layer.", ".")


def write_adapter(
    folder: Path, model: Any, settings: LoraSettings, whole: Callable[[Tensor], Tensor], *, first: bool
) -> None:
    """Write the adapters as `peft` does. All ranks call it; the first one writes."""
    from safetensors.torch import save_file

    values = {
        PREFIX + name.replace(f".{ADAPTER}.", "."): whole(value.detach()).cpu().contiguous()
        for name, value in model.named_parameters()
        if plain_name(name) is None
    }
    if first:
        folder.mkdir()
        _peft_config(settings).save_pretrained(str(folder))
        save_file(values, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _peft_config(settings: LoraSettings) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # a number in the formula
        target_modules=settings.target_modules,
        task_type="CAUSAL_LM",
        inference_mode=False,
    )
