"""Engines of several kinds, such as vLLM beside SGLang, as one pool."""

from ale_engines.mixed.engine import MixedEngine

__all__ = ["MixedEngine"]
