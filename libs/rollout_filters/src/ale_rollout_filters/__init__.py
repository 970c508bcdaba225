"""This package rejects finished rollouts that say nothing about the policy (paper 3.2.4.1)."""

from ale_rollout_filters.filters import ConfiguredFilters

__all__ = ["ConfiguredFilters"]
