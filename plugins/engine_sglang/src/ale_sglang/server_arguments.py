"""The command line of SGLang's server."""

from __future__ import annotations

from pathlib import Path

from ale_engines.server.launch import Launch
from ale_engines.server.settings import ServerSettings

SERVER = Path(__file__).parent / "server" / "ale_sglang_server.py"
"""The launcher; it runs in the server's Python."""
RESERVE = 8
"""Tokens of each context that SGLang keeps for itself: without them, no request could use the whole context."""
CACHE_MAX = 2**32
"""Bytes of the KV cache on a CPU, at most; it always holds one context."""


def list_arguments(launch: Launch, settings: ServerSettings) -> list[str]:
    """Return the arguments for one start."""
    arguments = [
        "--model-path", str(launch.model.folder.resolve()),
        "--weight-version", "0",
        f"--device={'cuda' if launch.cuda else 'cpu'}",
        "--dtype", launch.dtype,
        "--context-length", str(launch.max_context + RESERVE),
        "--max-running-requests", str(settings.max_batch),
        "--tp-size", str(settings.tensor_parallel),
        "--skip-tokenizer-init",
        "--skip-server-warmup",
        "--sleep-on-idle",  # without it, a core spins while there is nothing to do
        "--enable-metrics",
        "--log-level", "warning",
    ]  # fmt: skip
    if launch.cuda:
        return [*arguments, "--mem-fraction-static", str(settings.gpu_memory)]
    return [
        *arguments,
        "--attention-backend", "torch_native",
        "--cuda-graph-backend-decode", "disabled",
        "--cuda-graph-backend-prefill", "disabled",
        "--disable-overlap-schedule",
        "--max-total-tokens", str(choose_cache_tokens(launch, settings)),
    ]  # fmt: skip


def choose_cache_tokens(launch: Launch, settings: ServerSettings) -> int:
    """Return for how many tokens a server on the CPU has a KV cache: all contexts at their longest, or what fits into
    `CACHE_MAX`."""
    config = launch.model.config
    heads = int(config.get("num_attention_heads", 1))
    head_dim = int(config.get("head_dim") or int(config.get("hidden_size", 1)) // heads)
    values = 2 * int(config.get("num_hidden_layers", 1)) * int(config.get("num_key_value_heads", heads)) * head_dim
    each = values * (4 if launch.dtype == "float32" else 2)
    context = launch.max_context + RESERVE
    return max(context, min(context * settings.max_batch, CACHE_MAX // each))
