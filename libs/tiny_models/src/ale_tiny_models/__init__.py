"""This package makes small language models from nothing."""

from ale_tiny_models.decoder import TinyDecoder

__all__ = ["TinyDecoder"]
