"""Statistics of durations: quantiles of the latest ones, and the longest of all."""

from __future__ import annotations

import time
from collections import deque

LATEST = 1000


class Times:
    """Durations of one kind of work, in seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.latest: deque[float] = deque(maxlen=LATEST)
        self.most = 0.0

    def add(self, since: float) -> None:
        """Add a duration that began at `since` (`time.monotonic`) and ends now."""
        self.latest.append(time.monotonic() - since)
        self.most = max(self.most, self.latest[-1])

    def metrics(self) -> dict[str, float]:
        """Return median and 95th percentile of the latest durations and the longest of all; nothing without any."""
        if not self.latest:
            return {}
        ordered = sorted(self.latest)
        p50, p95 = (ordered[round(part * (len(ordered) - 1))] for part in (0.5, 0.95))
        return {f"{self.name}_p50": p50, f"{self.name}_p95": p95, f"{self.name}_max": self.most}
