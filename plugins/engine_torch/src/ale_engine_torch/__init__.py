"""Small models on the CPU or one GPU: continuous batching with a KV cache."""

from ale_engine_torch.engine import TorchEngine

__all__ = ["TorchEngine"]
