"""An environment of gymnasium whose actions and observations are texts."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.spaces import Text


class Reverse(gymnasium.Env[str, str]):
    """The model is shown a word and says it backwards."""

    def __init__(self, length: int = 5) -> None:
        self.length = length
        self.action_space = self.observation_space = Text(20)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw a word, or take the row's."""
        super().reset(seed=seed)
        drawn = "".join(chr(97 + int(n)) for n in self.np_random.integers(0, 26, self.length))
        self.word = (options or {}).get("word", drawn)
        return self.word, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One try."""
        return "over", float(action == self.word[::-1]), True, False, {}


gymnasium.register("Reverse-v0", Reverse)
