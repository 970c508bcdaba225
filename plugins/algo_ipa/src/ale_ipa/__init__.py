"""Interaction-perceptive policy optimization: chunk-level returns, ratios and masks (Eqs. 7 to 9)."""

from ale_ipa.algorithm import IPA

__all__ = ["IPA"]
