"""Counts what a server's requests use, as seen by their client."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Usage:
    """Counters since the start, and the integral of the number of running requests over time."""

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
