"""This package implements interaction-perceptive policy optimization, IPA (Eqs. 7 to 10): it has returns, ratios and
masks per chunk, and rollouts that start on an expert's path."""

from ale_ipa.algorithm import IPA

__all__ = ["IPA"]
