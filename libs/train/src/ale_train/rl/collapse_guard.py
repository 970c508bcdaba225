"""Stops a run whose policy collapses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ale.errors import TrainerError

COLLAPSE_PATIENCE = 5


class CollapseGuard:
    """Stops a run whose policy has lost its entropy and gets worse, because more steps would only cost time.

    It compares the success from the beginning of tasks, because other starts move to harder places."""

    def __init__(self, min_entropy: float, lr: str) -> None:
        self._min_entropy = min_entropy
        self._lr = lr
        self._best = 0.0
        self._low = 0
        self._without_entropy = 0

    def state(self) -> dict[str, Any]:
        """Return its state, for a checkpoint."""
        return {"best": self._best, "low": self._low, "without_entropy": self._without_entropy}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._best, self._low, self._without_entropy = state["best"], state["low"], state["without_entropy"]

    def blind(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the first `COLLAPSE_PATIENCE` steps with updates reported no entropy; true only once."""
        if "entropy" in metrics:
            self._without_entropy = COLLAPSE_PATIENCE
        elif metrics.get("updates") and self._min_entropy and self._without_entropy < COLLAPSE_PATIENCE:
            self._without_entropy += 1
            return self._without_entropy == COLLAPSE_PATIENCE
        return False

    def check(self, metrics: Mapping[str, float]) -> None:
        """Check one step's metrics. Raises `TrainerError` after `COLLAPSE_PATIENCE` bad steps in a row."""
        entropy = metrics.get("entropy")
        success = metrics.get("success_from_beginning", None if metrics.get("start_chunk") else metrics["success"])
        low = entropy is not None and entropy < self._min_entropy
        if success is None:  # without a success, only an entropy that is high enough ends a row of bad steps
            self._low = self._low if low else 0
            return
        self._best = max(self._best, success)
        self._low = self._low + 1 if low and success < 0.5 * self._best else 0
        if self._low >= COLLAPSE_PATIENCE:
            raise TrainerError(
                f"The policy is collapsing: for {COLLAPSE_PATIENCE} steps its entropy stayed below "
                f"{self._min_entropy:g} nats with success at {success:.2f} after a best of {self._best:.2f}. Lower "
                f"{self._lr}, or let failures weigh less (`ale config describe algorithm` lists what the algorithm has "
                "for that); rl.min_entropy=0 turns this guard off."
            )
