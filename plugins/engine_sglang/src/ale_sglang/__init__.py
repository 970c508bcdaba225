"""The engine `sglang`: servers of SGLang, started by ALE or found at a URL."""

from ale_sglang.engine import SglangEngine

__all__ = ["SglangEngine"]
