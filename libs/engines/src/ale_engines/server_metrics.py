"""A server's own counters: read from the text that it has for Prometheus, and kept over its restarts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

SAMPLE = re.compile(r"^([\w:]+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
STATES = frozenset({"server_running", "server_waiting", "server_cache_use", "server_prefix_hit_rate"})
"""Metrics that say how a server is now, and nothing of one that does not serve. All others are counters."""


class ServerMetrics:
    """The metrics of a replica's servers, one after another: no counter goes backwards when a server is started
    again."""

    def __init__(self) -> None:
        self._latest: dict[str, float] = {}
        self._before: defaultdict[str, float] = defaultdict(float)
        """What servers before the present one counted."""

    def update(self, latest: Mapping[str, float]) -> None:
        """Take what the server reports now."""
        for name, value in self._latest.items():
            if name not in STATES and latest.get(name, 0.0) < value:  # this is another server: it counts from 0
                self._before[name] += value
        self._latest = dict(latest)

    def end(self) -> None:
        """Forget how the server was, because it serves no more."""
        self._latest = {name: value for name, value in self._latest.items() if name not in STATES}

    def total(self) -> dict[str, float]:
        """Return all metrics."""
        return {
            name: self._latest.get(name, 0.0) + self._before.get(name, 0.0) for name in {**self._before, **self._latest}
        }


def sum_samples(text: str, names: Mapping[str, str]) -> dict[str, float]:
    """Return the metrics in `text` that `names` has, under the names that it gives them, summed up over their labels.

    The format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format."""
    sums: dict[str, float] = {}
    for name, value in SAMPLE.findall(text):
        if name in names:
            sums[names[name]] = sums.get(names[name], 0.0) + float(value)
    return sums
