"""Parts that policy-gradient algorithms share. Import its modules by name; `groups`, `settings`, `overlong`,
`step_rewards` and `token_order` need no torch."""

from typing import Literal

Level = Literal["chunk", "token", "trajectory"]
"""The unit whose tokens share a return, a ratio or a mask."""
Estimator = Literal["k1", "k2", "k3"]
"""Schulman's estimators of KL(pi || ref) on samples of pi."""
