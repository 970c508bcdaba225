"""What a server has sampled for a request so far.

Servers send tokens in parts while they sample, so that a generation whose server dies goes on from its last part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ale.errors import EngineError
from ale.specs.engine import Generation

STREAM_INTERVAL = 32
"""Tokens of a part, but for the first, which comes with the first token: so many are lost with a server, at most. Fewer
would cost throughput."""


class Sampled:
    """Grows by each part that the server `name` sends."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []

    def __len__(self) -> int:
        return len(self._token_ids)

    def add(self, token_ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Add a part: three sequences of one length. Raises `EngineError` if their lengths differ."""
        if not len(token_ids) == len(logprobs) == len(versions):
            raise EngineError(
                f"{self._name} answered {len(token_ids)} tokens with {len(logprobs)} log-probabilities and "
                f"{len(versions)} versions."
            )
        self._token_ids.extend(token_ids)
        self._logprobs.extend(logprobs)
        self._versions.extend(versions)

    def as_generation(self, finish_reason: Literal["stop", "length"] = "length", after: int = 0) -> Generation:
        """Return all parts as one generation, from the token of number `after` on."""
        parts = tuple(self._token_ids[after:]), tuple(self._logprobs[after:]), tuple(self._versions[after:])
        return Generation(*parts, finish_reason)
