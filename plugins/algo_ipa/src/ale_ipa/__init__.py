"""Interaction-perceptive policy optimization, IPA (Eqs. 7 to 10): returns, ratios and masks per chunk, and rollouts
that start on an expert's path."""

from ale_ipa.algorithm import IPA

__all__ = ["IPA"]
