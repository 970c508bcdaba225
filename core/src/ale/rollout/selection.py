"""Selects a plugin for each task: the first rule that fits decides; adjacent rules with the same `when` share by
weight.

Each group of rollouts gets one choice, so that rollouts which are compared with each other share it, and it is the same
when the run is repeated: it is drawn from the run's seed, the section and the group. Rollouts with a start get the
sandbox and the scaffold that it works with, if it names them (`Start.made_with`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ale.errors import ConfigError
from ale.specs.algorithm import RolloutRequest

D = TypeVar("D")


@dataclass(frozen=True)
class Option(Generic[D]):
    """A started driver, its name in the run, and which tasks it is for."""

    use: str
    driver: D
    when: tuple[str, ...] = ()
    """Tags that a task must carry (see `carries`)."""
    weight: float = 1.0


@dataclass(frozen=True)
class Selection(Generic[D]):
    """The plugins of one section."""

    path: str
    options: Sequence[Option[D]]
    seed: int = 0

    def of(self, request: RolloutRequest) -> Option[D]:
        """Return the plugin for the group of this request. Raises `ConfigError` if no rule fits."""
        task = request.task
        if len(self.options) == 1 and not self.options[0].when:
            return self.options[0]
        first = next((i for i, option in enumerate(self.options) if carries(task.tags, option.when)), None)
        if first is None:
            tags = ", ".join(task.tags) or "none"
            raise ConfigError(
                f"{self.path}: no rule fits the task {task.id} (its tags: {tags}); end the list with a rule without "
                "'when'."
            )
        sharing = [self.options[first]]
        for option in self.options[first + 1 :]:
            if set(option.when) != set(sharing[0].when):
                break
            sharing.append(option)
        if request.start is not None and self.path != "reward":
            made_with = dict(request.start.made_with).get(self.path)
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
        """Return `((section, plugin),)` for the trajectory if there was a choice; else nothing."""
        return ((self.path, self.of(request).use),) if len(self.options) > 1 else ()


def carries(tags: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether every wanted tag is among the tags, and no tag that is marked with `!` is."""
    return all((tag[1:] not in tags) if tag.startswith("!") else (tag in tags) for tag in wanted)


def _draw(text: str) -> float:
    """Return a number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") / (1 << 56)
