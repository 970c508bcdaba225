"""The engine `vllm`: servers of vLLM, started by ALE or found at a URL."""

from ale_vllm.engine import VllmEngine

__all__ = ["VllmEngine"]
