"""The task source `bash`: families with parameters (`train`, `heldout`) and graded tasks (`graded`).

1. Number n of a family is drawn from a seed of its own, (seed, split, family, n): no draw depends on another, nor on
   which other families are chosen.
2. Families take turns, so that any prefix of a split is balanced.
3. A draw with the instruction and the files of an earlier one is skipped, and so is, in `train`, one of `heldout`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import random
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice
from typing import Literal

from pydantic import Field, field_validator

from ale.errors import ConfigError
from ale.specs.driver import PluginConfig
from ale.specs.scaffold import Responder
from ale.specs.tasks import TaskSource
from ale.task import HELDOUT, TRAIN, Task, TaskTests
from ale_bash.demonstrator import Demonstrator, run_solution
from ale_bash.families import FAMILIES, LONG_FAMILIES
from ale_bash.family import Family, LongFamily, Turn
from ale_bash.graded import graded_part, graded_tasks

GRADED = "graded"
KNOWN: dict[str, Family | LongFamily] = {**FAMILIES, **LONG_FAMILIES}
MAX_KNOWN_DRAWS = 1000
TEST_TIMEOUT_S = 10.0
WRONG_TURNS: tuple[Turn, ...] = ("error", "detour", "mistake", "mistake")


class BashTasks(TaskSource):
    """See `TaskSource`."""

    api_version = ">=1.1,<1.3"
    capabilities = frozenset({"demonstrations"})

    class Config(PluginConfig):
        """Settings of the task source `bash`."""

        families: tuple[str, ...] = Field(
            tuple(FAMILIES),
            min_length=1,
            description=f"Families to draw from: {', '.join(FAMILIES)}; and, with a long way, {', '.join(LONG_FAMILIES)}.",
        )
        include: Literal["families", "graded", "all"] = Field(
            "families",
            description="What `train` and `heldout` hold: tasks of the families, graded ones (every fourth is held "
            "out), or graded ones followed by the families. The split `graded` always holds all graded tasks.",
        )
        train_tasks: int | None = Field(
            8192, gt=0, description="Family tasks of the split `train`, all different; null: no end, some come again."
        )
        heldout_tasks: int = Field(256, gt=0, description="Family tasks of the split `heldout`.")
        seed: int = Field(0, ge=0, description="Seed of the instances; the run's own seed does not change them.")
        wrong_turn_rate: float = Field(
            0.5,
            ge=0,
            le=1,
            description="Share of demonstrations with a wrong turn: half of these are mistakes that go unnoticed. In a long "
            "family: share of the forks, each by itself, at which a demonstration goes wrong.",
        )

        @field_validator("families")
        @classmethod
        def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
            for name in names:
                if name not in KNOWN:
                    near = difflib.get_close_matches(name, KNOWN, 1)
                    hint = f" (did you mean '{near[0]}'?)" if near else ""
                    raise ValueError(f"there is no family '{name}'{hint}; the families are {', '.join(KNOWN)}")
            if len(set(names)) < len(names):
                raise ValueError(f"a family stands twice in {', '.join(names)}; name each once")
            return names

    config: Config

    def tasks(self, split: str) -> Iterable[Task]:
        """See `TaskSource.tasks`."""
        if split == GRADED:
            return graded_tasks()
        if split not in (TRAIN, HELDOUT):
            raise ConfigError(f"The task source 'bash' has the splits {TRAIN}, {HELDOUT} and {GRADED}, not '{split}'.")
        graded = graded_part(split) if self.config.include != "families" else ()
        return graded if self.config.include == "graded" else chain(graded, self._family_tasks(split))

    def demonstrator(self, task: Task, seed: int) -> Responder | None:
        """A demonstrator of the task's family; a graded task's runs the reference solution."""
        if "facts" not in task.metadata:
            return Demonstrator(run_solution(task.solution)) if task.solution else None
        rng = random.Random(f"{seed}/{task.id}")
        family, facts = KNOWN[task.tags[0]], task.metadata["facts"]
        if isinstance(family, LongFamily):
            return Demonstrator(family.show(facts, rng, self.config.wrong_turn_rate))
        turn: Turn = rng.choice(WRONG_TURNS) if rng.random() < self.config.wrong_turn_rate else "none"
        return Demonstrator(family.show(facts, rng, turn))

    def _family_tasks(self, split: str) -> Iterator[Task]:
        if split == HELDOUT:
            yield from islice(self._take_turns(HELDOUT, set()), self.config.heldout_tasks)
        else:
            known = {content_hash(task) for task in self._family_tasks(HELDOUT)}
            yield from islice(self._take_turns(TRAIN, known), self.config.train_tasks)

    def _take_turns(self, split: str, known: set[bytes]) -> Iterator[Task]:
        """Tasks whose content is not in `known`, family by family, without end."""
        endless = split == TRAIN and self.config.train_tasks is None
        numbers = {name: count() for name in self.config.families}
        while True:
            for name in self.config.families:
                for number in islice(numbers[name], MAX_KNOWN_DRAWS):
                    task = self._draw(KNOWN[name], split, number)
                    content = content_hash(task)
                    if content not in known:
                        break
                else:
                    raise ConfigError(
                        f"The family '{name}' has no further tasks for the split '{split}'; "
                        "lower tasks.train_tasks or tasks.heldout_tasks, or choose more families."
                    )
                if not endless:
                    known.add(content)
                yield task

    def _draw(self, family: Family | LongFamily, split: str, number: int) -> Task:
        instance = family.make(random.Random(f"{self.config.seed}/{split}/{family.name}/{number}"))
        return Task(
            id=f"{family.name}-{split}-{number}", instruction=instance.instruction, files=instance.files,
            tests=TaskTests(command=instance.test, timeout_s=TEST_TIMEOUT_S), tags=(family.name,), image=None,
            solution=instance.solution, metadata={"facts": instance.facts},
        )  # fmt: skip


def content_hash(task: Task) -> bytes:
    """What makes two tasks the same: instruction and files."""
    return hashlib.sha256(json.dumps([task.instruction, task.files], sort_keys=True).encode()).digest()[:16]
