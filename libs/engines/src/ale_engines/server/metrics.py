"""The metrics of a server: what its client counts, and its own counters, which its page for Prometheus has."""

from __future__ import annotations

import contextlib
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping

SAMPLE = re.compile(r"^([\w:]+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
STATES = frozenset({"server_running", "server_waiting", "server_cache_use", "server_prefix_hit_rate"})
"""Metrics that say how a server is now, and nothing of one that does not serve. All others are counters."""


class Usage:
    """What a server's client counts since the start, with the integral of the number of running requests over time."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._active = 0
        self._since = time.monotonic()
        self._busy_s = self._slot_s = 0.0
        self.requests = self.prompt_tokens = self.sampled_tokens = self.cached_prompt_tokens = 0

    @contextlib.contextmanager
    def running(self, prompt_tokens: int) -> Iterator[None]:
        """The time in which a request runs; one that ends well is counted, with its prompt."""
        self._advance()
        self._active += 1
        try:
            yield
            self.requests += 1
            self.prompt_tokens += prompt_tokens
        finally:
            self._advance()
            self._active -= 1

    def metrics(self) -> dict[str, float]:
        """A request that runs counts as one that samples."""
        self._advance()
        return {
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "cached_prompt_tokens": self.cached_prompt_tokens,
            "sampled_tokens": self.sampled_tokens,
            "busy_s": self._busy_s,
            "slot_use": self._slot_s / (self._busy_s * self._slots) if self._busy_s else 0.0,
        }

    def _advance(self) -> None:
        now = time.monotonic()
        if self._active:
            self._busy_s += now - self._since
            self._slot_s += (now - self._since) * self._active
        self._since = now


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
