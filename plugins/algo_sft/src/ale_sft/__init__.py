"""Supervised fine-tuning with error-masked turns (Eqs. 1 and 2)."""

from ale_sft.algorithm import SFT

__all__ = ["SFT"]
