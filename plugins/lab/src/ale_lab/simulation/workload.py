"""What a simulated episode does: turns of tokens, with tools between them.

A `Workload` draws lengths that are log-normal, cut at a limit; `Measured` draws whole episodes of a real run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ale_lab.simulation import FORBID

BESIDE = 0.1
"""How far from its place in a step an episode may be drawn, as a share of the step."""


@dataclass(frozen=True, slots=True)
class Episode:
    """`start_s`, then turns of (sampled tokens, seconds of the tool after it), then `reward_s`. The first prompt has
    `prompt_tokens`, and each tool's answer `answer_tokens`."""

    start_s: float
    turns: Sequence[tuple[float, float]]
    reward_s: float
    prompt_tokens: float
    answer_tokens: float


class Episodes(Protocol):
    """Groups of `group_size` episodes, `prompts` groups a step."""

    @property
    def prompts(self) -> int:
        """Groups a step."""

    @property
    def group_size(self) -> int:
        """Episodes a group."""

    def draw(self, random: random.Random, step: int, place: float) -> Episode:
        """Return an episode of a step, from 0; `place` in the order in which those of the step begin, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A log-normal number with this mean and coefficient of variation (before the cut), at most `most`."""

    __pydantic_config__ = FORBID
    mean: float
    cv: float = 0.0
    most: float = math.inf

    def draw(self, random: random.Random) -> float:
        """Return a number."""
        if not self.cv or not self.mean:
            return min(self.mean, self.most)
        variance = math.log(1 + self.cv**2)
        return min(self.most, random.lognormvariate(math.log(self.mean) - variance / 2, math.sqrt(variance)))


@dataclass(frozen=True, slots=True)
class Workload:
    """Episodes with drawn lengths; tokens and seconds."""

    __pydantic_config__ = FORBID
    prompts: int = 32
    group_size: int = 8
    prompt_tokens: float = 1500.0
    turns: LogNormal = field(default=LogNormal(6.0, 0.5, 20.0))
    tokens: LogNormal = field(default=LogNormal(1200.0, 1.0, 8000.0))
    """Sampled in a turn."""
    tool_s: LogNormal = field(default=LogNormal(5.0, 1.5, 120.0))
    answer_tokens: float = 200.0
    start_s: float = 2.0
    reward_s: float = 5.0
    fault_rate: float = 0.0
    """The share of episodes of which one tool hangs, for `fault_s`."""
    fault_s: float = 600.0

    def draw(self, random: random.Random, step: int, place: float) -> Episode:
        """Return an episode; steps and places are alike."""
        count = max(1, round(self.turns.draw(random)))
        fault_at = random.randrange(count) if random.random() < self.fault_rate else -1
        turns = [
            (max(1.0, self.tokens.draw(random)), self.fault_s if i == fault_at else self.tool_s.draw(random))
            for i in range(count)
        ]
        return Episode(self.start_s, turns, self.reward_s, self.prompt_tokens, self.answer_tokens)


@dataclass(frozen=True, slots=True)
class Measured:
    """Episodes of a real run by step, from 0, in the order in which they began.

    For a step without any, those of the nearest steps are drawn, since a policy that learns makes others later; and
    those of about the same place in the step, since what begins together shares the machine."""

    prompts: int
    group_size: int
    episodes: Mapping[int, Sequence[Episode]]

    def draw(self, random: random.Random, step: int, place: float) -> Episode:
        """Return an episode of about this place."""
        nearest = min(abs(step - there) for there in self.episodes)
        there = self.episodes[random.choice(sorted({step - nearest, step + nearest} & self.episodes.keys()))]
        at = place + random.uniform(-BESIDE, BESIDE)
        return there[min(len(there) - 1, max(0, int(at * len(there))))]
