"""Which of several plugins a task gets: the first rule that fits decides, neighbours with the same `when` share by weight.

The choice falls once for each group of rollouts, so that those which are compared with each other share it, and it is
the same when the run is repeated: it is drawn from the run's seed, the section and the group. Rollouts that replay an expert
get the sandbox and the scaffold that made it, where that is known: under another one its commands would not come, or mean
something else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ale.errors import ConfigError
from ale.specs.algorithm import RolloutRequest
from ale.specs.driver import Driver
from ale.task import Task

D = TypeVar("D", bound=Driver)


@dataclass(frozen=True)
class Option(Generic[D]):
    """A started driver, the name that the run gives it, and which tasks it is for."""

    use: str
    driver: D
    when: tuple[str, ...] = ()
    weight: float = 1.0

    def fits(self, task: Task) -> bool:
        """Whether the task carries every tag of `when`, and none that stands there with a `!`."""
        return carries(task.tags, self.when)


@dataclass(frozen=True)
class Selection(Generic[D]):
    """The plugins of one section."""

    path: str
    options: Sequence[Option[D]]
    seed: int = 0

    def of(self, request: RolloutRequest) -> Option[D]:
        """The plugin for the group of this request. Raises `ConfigError` where no rule fits."""
        task = request.task
        if len(self.options) == 1 and not self.options[0].when:
            return self.options[0]
        first = next((i for i, option in enumerate(self.options) if option.fits(task)), None)
        if first is None:
            tags = ", ".join(task.tags) or "none"
            raise ConfigError(
                f"{self.path}: no rule fits the task {task.id} (its tags: {tags}); end the list with a rule without 'when'."
            )
        sharing = [self.options[first]]
        for option in self.options[first + 1 :]:
            if set(option.when) != set(sharing[0].when):
                break
            sharing.append(option)
        if request.expert is not None and self.path != "reward":
            made_with = dict(request.expert.made_with).get(self.path)
            for option in sharing:
                if option.use == made_with:
                    return option
        at = _draw(f"{self.seed}/{self.path}/{request.group}") * sum(option.weight for option in sharing)
        for option in sharing:
            at -= option.weight
            if at < 0:
                return option
        return sharing[-1]

    def made_with(self, request: RolloutRequest) -> tuple[tuple[str, str], ...]:
        """`((section, plugin),)` where there was a choice, for the trajectory; else nothing."""
        return ((self.path, self.of(request).use),) if len(self.options) > 1 else ()


def carries(tags: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether every wanted tag is among the tags, and none that is wanted with a `!` in front."""
    return all((tag[1:] not in tags) if tag.startswith("!") else (tag in tags) for tag in wanted)


def _draw(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") / (1 << 56)
