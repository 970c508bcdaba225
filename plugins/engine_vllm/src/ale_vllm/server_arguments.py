"""The command line of vLLM's server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ale.errors import ConfigError
from ale_engines.server.launch import Launch
from ale_engines.server.settings import ServerSettings

SERVER = Path(__file__).parent / "server" / "ale_vllm_server.py"
"""The launcher; it runs in the server's Python."""
CACHE_MIN, CACHE_MAX = 2**28, 2**32
"""Bytes of the KV cache on a CPU, at least and at most: all contexts at their longest, between these."""

BLOCK = 32
"""Tokens of a block of the cache on a CPU, the fewest that its attention takes: prefixes are shared by whole blocks."""
HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""What vLLM's attention on a CPU can compute; with another one the server would die with its first request."""


def list_arguments(launch: Launch, settings: ServerSettings) -> list[str]:
    """Return the arguments for one start. Raises `ConfigError` if vLLM cannot compute the model on a CPU."""
    arguments = [
        "--model", str(launch.model.folder.resolve()),
        "--uds", str(launch.work / "socket"),
        "--dtype", launch.dtype,
        "--max-model-len", str(launch.max_context),
        "--max-num-seqs", str(settings.max_batch),
        "--tensor-parallel-size", str(settings.tensor_parallel),
        "--generation-config", "vllm",
        "--skip-tokenizer-init",
        "--enable-prefix-caching",
        "--disable-uvicorn-access-log",
        "--disable-fastapi-docs",
    ]  # fmt: skip
    if launch.cuda:
        return [*arguments, "--gpu-memory-utilization", str(settings.gpu_memory), "--enable-sleep-mode"]
    _, head_dim = read_heads(launch.model.config)
    if head_dim not in HEAD_DIMS:
        raise ConfigError(
            f"engine: vLLM on a CPU cannot compute attention heads of size {head_dim} ({launch.model.folder}), only "
            f"{', '.join(map(str, HEAD_DIMS))}. Take another engine (`use: torch`), or a model with one of these."
        )
    cache = ["--kv-cache-memory-bytes", str(choose_cache_size(launch, settings)), "--block-size", str(BLOCK)]
    # One process that computes in place of two that spin and wait for each other: on two cores they took turns with the
    # client, so that conversations fell out of step and half of the throughput was gone.
    one = ["--distributed-executor-backend", "uni"] if settings.tensor_parallel == 1 else []
    return [*arguments, "--enforce-eager", *one, *cache]


def choose_cache_size(launch: Launch, settings: ServerSettings) -> int:
    """Return the bytes of the KV cache of a server on the CPU."""
    config = launch.model.config
    heads, head_dim = read_heads(config)
    values = 2 * int(config.get("num_hidden_layers", 1)) * heads * head_dim
    size = values * (4 if launch.dtype == "float32" else 2) * launch.max_context * settings.max_batch
    return max(CACHE_MIN, min(CACHE_MAX, size))


def read_heads(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of key-value heads and the size of each."""
    heads = int(config.get("num_attention_heads", 1))
    head_dim = int(config.get("head_dim") or int(config.get("hidden_size", 1)) // heads)
    return int(config.get("num_key_value_heads", heads)), head_dim
