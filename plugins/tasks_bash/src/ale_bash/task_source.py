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
from ale.specs.driver import Driver, PluginConfig
from ale.specs.start import Responder
from ale.specs.tasks import TaskSource
from ale.task import HELDOUT, TRAIN, Task, TaskTests
from ale_bash.demonstrator import Demonstrator, run_solution
from ale_bash.families import FAMILIES, LONG_FAMILIES
from ale_bash.family import Family, LongFamily, WrongTurn
from ale_bash.graded_tasks import graded_tasks, graded_tasks_of_split

GRADED = "graded"
ALL_FAMILIES: dict[str, Family | LongFamily] = {**FAMILIES, **LONG_FAMILIES}
MAX_KNOWN_DRAWS = 1000
TEST_TIMEOUT_S = 10.0
WRONG_TURNS: tuple[WrongTurn, ...] = ("error", "detour", "mistake", "mistake")


class BashTasks(Driver, TaskSource):
    """Draws tasks from the families, and lists the graded ones."""

    api_version = ">=1.0,<1.2"
    capabilities = frozenset({"demonstrations"})

    class Config(PluginConfig):
        """Settings of the task source `bash`."""

        families: tuple[str, ...] = Field(
            tuple(FAMILIES),
            min_length=1,
            description=f"Families to draw from: {', '.join(FAMILIES)}; and, with longer tasks, "
            f"{', '.join(LONG_FAMILIES)}.",
        )
        include: Literal["families", "graded", "all"] = Field(
            "families",
            description=(
                "Tasks of the splits `train` and `heldout`: those of the families, the graded tasks (every fourth is "
                "held out), or the graded tasks followed by those of the families. The split `graded` always has all "
                "graded tasks."
            ),
        )
        train_tasks: int | None = Field(
            8192,
            gt=0,
            description="Number of family tasks in the split `train`, all different; null: endless, with repetitions.",
        )
        heldout_tasks: int = Field(256, gt=0, description="Number of family tasks in the split `heldout`.")
        seed: int = Field(0, ge=0, description="Seed of the tasks; the run's own seed does not change them.")
        wrong_turn_rate: float = Field(
            0.5,
            ge=0,
            le=1,
            description=(
                "Share of demonstrations with a wrong turn; in half of them it goes unnoticed. In a long family: the "
                "share of forks at which a demonstration goes wrong, drawn for each fork."
            ),
        )

        @field_validator("families")
        @classmethod
        def _check_families(cls, names: tuple[str, ...]) -> tuple[str, ...]:
            for name in names:
                if name not in ALL_FAMILIES:
                    near = difflib.get_close_matches(name, ALL_FAMILIES, 1)
                    hint = f" (did you mean '{near[0]}'?)" if near else ""
                    raise ValueError(f"there is no family '{name}'{hint}; the families are {', '.join(ALL_FAMILIES)}")
            if len(set(names)) < len(names):
                raise ValueError(f"{', '.join(names)} names a family twice; name each once")
            return names

    config: Config

    def tasks(self, split: str) -> Iterable[Task]:
        if split == GRADED:
            return graded_tasks()
        if split not in (TRAIN, HELDOUT):
            raise ConfigError(f"The task source 'bash' has the splits {TRAIN}, {HELDOUT} and {GRADED}, not '{split}'.")
        graded = graded_tasks_of_split(split) if self.config.include != "families" else ()
        return graded if self.config.include == "graded" else chain(graded, self._family_tasks(split))

    def size(self, split: str) -> int | None:
        if split not in (TRAIN, HELDOUT) or self.config.include != "families":
            return None
        return self.config.train_tasks if split == TRAIN else self.config.heldout_tasks

    def demonstrator(self, task: Task, seed: int) -> Responder | None:
        """A demonstrator of the task's family; a graded task's runs the reference solution."""
        if "facts" not in task.metadata:
            return Demonstrator(run_solution(task.solution)) if task.solution else None
        rng = random.Random(f"{seed}/{task.id}")
        family, facts = ALL_FAMILIES[task.tags[0]], task.metadata["facts"]
        if isinstance(family, LongFamily):
            return Demonstrator(family.demonstrate(facts, rng, self.config.wrong_turn_rate))
        turn: WrongTurn = rng.choice(WRONG_TURNS) if rng.random() < self.config.wrong_turn_rate else "none"
        return Demonstrator(family.demonstrate(facts, rng, turn))

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
                    task = self._make_task(ALL_FAMILIES[name], split, number)
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

    def _make_task(self, family: Family | LongFamily, split: str, number: int) -> Task:
        instance = family.make_instance(random.Random(f"{self.config.seed}/{split}/{family.name}/{number}"))
        return Task(
            id=f"{family.name}-{split}-{number}",
            instruction=instance.instruction,
            files=instance.files,
            tests=TaskTests(command=instance.test, timeout_s=TEST_TIMEOUT_S),
            tags=(family.name,),
            image=None,
            solution=instance.solution,
            metadata={"facts": instance.facts},
        )


def content_hash(task: Task) -> bytes:
    """What makes two tasks the same: instruction and files."""
    return hashlib.sha256(json.dumps([task.instruction, task.files], sort_keys=True).encode()).digest()[:16]
