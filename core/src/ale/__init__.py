"""ALE trains agents that act. This package holds contracts, plugin loading and rollouts; see `docs/` for the guide.

`ale_train` has runs from beginning to end, also from Python: `from ale_train import run, evaluate, read_run`.
"""

__version__ = "0.1.0"
