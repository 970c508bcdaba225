"""Processes that compute as one: a driver starts them, calls a method on all, and ends them together."""

from ale_ranks.group import RankGroup, RanksLost
from ale_ranks.launcher import keep_launchers
from ale_ranks.plan import RankPlan, backend_of
from ale_ranks.processes import OneRank, Ranks
from ale_ranks.world import World

__all__ = ["OneRank", "RankGroup", "RankPlan", "Ranks", "RanksLost", "World", "backend_of", "keep_launchers"]
