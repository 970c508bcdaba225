"""Processes that compute as one: a driver starts them, calls a method on all, and ends them together."""

from ale_torch.ranks.group import RankGroup, RanksLost
from ale_torch.ranks.launcher import keep_launchers
from ale_torch.ranks.processes import OneRank, Ranks
from ale_torch.ranks.world import RankPlan, World, backend_of

__all__ = ["OneRank", "RankGroup", "RankPlan", "Ranks", "RanksLost", "World", "backend_of", "keep_launchers"]
