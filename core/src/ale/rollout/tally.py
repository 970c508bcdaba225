"""How many rollouts of a step were rejected, why, and what came of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts of one step."""

    finished: int = 0
    resampled: int = 0
    unfilled: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def metrics(self) -> dict[str, float]:
        """`rejected` and `rejected/<reason>`: shares of all finished rollouts. `resampled`: rollouts made anew after a
        rejection. `unfilled`: requests of which every try was rejected."""
        n = max(1, self.finished)
        shares = {f"rejected/{reason.replace(' ', '_')}": count / n for reason, count in sorted(self.rejected.items())}
        return {
            "rejected": self.rejected.total() / n,
            "resampled": float(self.resampled),
            "unfilled": float(self.unfilled),
        } | shares
