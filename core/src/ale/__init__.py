"""ALE: train agents that act. Contracts, plugins, rollouts, the RL loop; see `docs/` for the guide."""

__version__ = "0.1.0"
