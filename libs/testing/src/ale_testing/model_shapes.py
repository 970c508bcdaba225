"""Small models of many architectures, by which an engine or a trainer is compared with transformers.

Every switch of length (a window, another set of rotary positions) lies below `LONG` tokens, so that a text of as many
tokens crosses it. Heads are 32 wide and layers 128, because servers have no kernels for less.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ale.specs.trainer import TrainBatch

VOCABULARY = 301
LONG = 64
"""Tokens of a text that crosses every switch of length."""
LENGTHS = (20, 2 * LONG, 12, 33, LONG, 8)
"""Of the sequences of `make_batch`."""
SWITCH = 32
"""The length after which rotary positions change, where they do."""

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


_LLAMA3 = _rope(
    "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=SWITCH
)
_YARN = _rope("yarn", factor=8.0, original_max_position_embeddings=SWITCH)
_LONGROPE = _rope(
    "longrope", short_factor=[1.0] * 16, long_factor=[1.0 + i / 2 for i in range(16)], factor=8.0,
    original_max_position_embeddings=SWITCH,
) | {"original_max_position_embeddings": SWITCH}  # fmt: skip
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "multi-query": ("llama", {"num_key_value_heads": 1}),
    "one KV head a head": ("llama", {"num_key_value_heads": 4}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3": ("llama", _LLAMA3),
    "linear": ("llama", _rope("linear", factor=4.0)),
    "yarn": ("llama", _YARN),
    "dynamic": ("llama", _rope("dynamic", factor=4.0) | {"max_position_embeddings": SWITCH}),
    "longrope": ("phi3", _LONGROPE),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "q/k norm": ("qwen3", {}),
    "window": ("mistral", {"sliding_window": 8}),
    "windows of some layers": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "gemma3": ("gemma3_text", {"query_pre_attn_scalar": 32, "sliding_window": 8, "sliding_window_pattern": 2}),
    "experts": ("qwen3_moe", _EXPERTS),
    "experts of mixtral": ("mixtral", {"num_local_experts": 4}),
    "shared expert": ("qwen2_moe", _EXPERTS | {"shared_expert_intermediate_size": 64}),
    "mamba": ("mamba", {"state_size": 8}),
    "mamba2": ("mamba2", {"state_size": 8, "num_heads": 8, "head_dim": 32, "n_groups": 1, "chunk_size": 8}),
    "hybrid": ("lfm2", {"layer_types": ["conv", "full_attention"]}),
}
"""By what is special in them: the model type, and its settings beside the sizes that all have."""
REFUSED: dict[str, tuple[str, ...]] = {
    "vllm": ("windows of some layers", "mamba", "mamba2", "hybrid"),
    "sglang": (
        "biases", "dynamic", "window", "windows of some layers", "shared expert", "mamba", "mamba2", "hybrid",
    ),
    "megatron": (
        "biases", "yarn", "dynamic", "longrope", "window", "gemma3", "experts of mixtral", "shared expert", "mamba",
        "mamba2", "hybrid",
    ),
}  # fmt: skip
"""The shapes that an engine (on a CPU) or a trainer refuses when it loads them; `torch` refuses none."""


def write_model(name: str, folder: Path, seed: int = 0) -> Path:
    """Write the model of that name in `SHAPES`, with weights so large that mistakes show."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, own = SHAPES[name]
    auto_config: Any = AutoConfig
    auto: Any = AutoModelForCausalLM
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = auto.from_config(auto_config.for_model(kind, **{**_SIZES, **own}))
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.2 * torch.randn_like(parameter))
                elif "conv" not in parameter_name:
                    parameter.copy_(torch.randn_like(parameter) * 1.5 * parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return folder


@cache
def _read(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


def true_logprobs(folder: Path, token_ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each token but the first, by a pass of transformers over the whole text alone."""
    import torch

    tokens = torch.tensor([list(token_ids)])
    with torch.no_grad():
        table = torch.log_softmax(_read(folder)(tokens, use_cache=False).logits[0].float(), -1)
    found: list[float] = table[:-1].gather(-1, tokens[0, 1:, None])[:, 0].tolist()
    return found


def make_batch() -> TrainBatch:
    """Return a batch of random sequences of the lengths in `LENGTHS`, with loss on all tokens but each first one."""
    import numpy as np

    from ale.specs.trainer import ChunkTable, TrainBatch

    rng, count = np.random.default_rng(0), len(LENGTHS)
    ids = np.concatenate([np.where(np.arange(length) < 1, -1, at) for at, length in enumerate(LENGTHS)])
    ones = np.ones(count)
    table = ChunkTable(
        np.arange(count), np.zeros(count, np.int64), ones.astype(np.int64), ones.astype(np.float32), ones.astype(bool)
    )
    tokens = np.concatenate([rng.integers(3, VOCABULARY, length) for length in LENGTHS]).astype(np.int64)
    engine = np.zeros(len(ids), np.float32)
    return TrainBatch(tokens, np.array(LENGTHS), np.arange(count), ids, engine, table, float((ids >= 0).sum()))


def true_batch_logprobs(folder: Path, batch: TrainBatch) -> list[float]:
    """Return what a trainer is to compute of `make_batch`: each sequence alone, and 0 for its first token."""
    found, first = [], 0
    for length in batch.lengths.tolist():
        found += [0.0, *true_logprobs(folder, batch.token_ids[first : first + length].tolist())]
        first += length
    return found
