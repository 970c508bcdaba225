"""ALE trains agents that act. This package holds contracts, plugin loading and rollouts; see `docs/` for the guide."""

__version__ = "0.1.0"
