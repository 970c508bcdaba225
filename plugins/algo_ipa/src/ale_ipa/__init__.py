"""Interaction-perceptive policy optimization: chunk-level returns, ratios and masks, starts on experts' paths (Eqs. 7 to 10)."""

from ale_ipa.algorithm import IPA

__all__ = ["IPA"]
