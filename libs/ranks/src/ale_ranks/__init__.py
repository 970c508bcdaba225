"""Processes of one machine that compute as one: a driver starts them, calls a method on all, and ends them together."""

from ale_ranks.group import OneRank, Ranks
from ale_ranks.launcher import keep_launchers
from ale_ranks.world import World

__all__ = ["OneRank", "Ranks", "World", "keep_launchers"]
