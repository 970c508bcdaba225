"""The task source `bash`: families with parameters (splits `train` and `heldout`) and graded tasks (split `graded`).

An instance is drawn from a seed of its own: (seed, split, family, number). Held-out instances are drawn first, and a
training instance with the same instruction and files is skipped, so the splits share none.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import resources

from pydantic import Field, field_validator

from ale.errors import ConfigError
from ale.messages import Message, ToolCall, ToolSpec
from ale.specs.driver import PluginConfig
from ale.specs.scaffold import Responder
from ale.specs.tasks import TaskSource
from ale.task import HELDOUT, TRAIN, Task, TaskTests
from ale_bash.families import FAMILIES
from ale_bash.family import Call, Family, Instance, Turn

GRADED = "graded"


class BashTasks(TaskSource):
    """See `TaskSource`."""

    class Config(PluginConfig):
        """Settings of the task source `bash`."""

        families: tuple[str, ...] = Field(tuple(FAMILIES), min_length=1, description=f"Families to draw from: {', '.join(FAMILIES)}.")
        train_tasks: int = Field(8192, gt=0, description="Tasks of the split `train`.")
        heldout_tasks: int = Field(256, gt=0, description="Tasks of the split `heldout`.")
        seed: int = Field(0, ge=0, description="Seed of the instances; the run's own seed does not change them.")
        wrong_turn_rate: float = Field(0.5, ge=0, le=1, description="Share of demonstrations with a wrong turn.")

        @field_validator("families")
        @classmethod
        def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
            for name in names:
                if name not in FAMILIES:
                    near = difflib.get_close_matches(name, FAMILIES, 1)
                    hint = f" (did you mean '{near[0]}'?)" if near else ""
                    raise ValueError(f"there is no family '{name}'{hint}; the families are {', '.join(FAMILIES)}")
            return names

    config: Config

    def tasks(self, split: str) -> Iterable[Task]:
        """See `TaskSource.tasks`; families take turns."""
        if split == GRADED:
            return graded_tasks()
        if split not in (TRAIN, HELDOUT):
            raise ConfigError(f"The task source 'bash' has the splits {TRAIN}, {HELDOUT} and {GRADED}, not '{split}'.")
        return self._family_tasks(split)

    def _family_tasks(self, split: str) -> Iterator[Task]:
        count = self.config.heldout_tasks if split == HELDOUT else self.config.train_tasks
        taken = set() if split == HELDOUT else {_content(task) for task in self._family_tasks(HELDOUT)}
        draws = dict.fromkeys(self.config.families, 0)
        for i in range(count):
            family = FAMILIES[self.config.families[i % len(self.config.families)]]
            while True:
                number = draws[family.name]
                draws[family.name] += 1
                task = self._task(family, split, number)
                if split == HELDOUT or _content(task) not in taken:
                    yield task
                    break

    def _task(self, family: Family, split: str, number: int) -> Task:
        instance = self._instance(family, split, number)
        return Task(
            id=f"{family.name}-{split}-{number}", instruction=instance.instruction, files=instance.files,
            tests=TaskTests(command=instance.test), tags=(family.name,), metadata={"facts": instance.facts},
        )  # fmt: skip

    def _instance(self, family: Family, split: str, number: int) -> Instance:
        return family.make(random.Random(f"{self.config.seed}/{split}/{family.name}/{number}"))

    def demonstrator(self, task: Task, seed: int) -> Responder | None:
        """Shows tasks of the families; graded ones have a reference solution instead."""
        family = FAMILIES.get(task.tags[0]) if task.tags else None
        if family is None or "facts" not in task.metadata:
            return None
        rng = random.Random(f"{seed}/{task.id}")
        turn: Turn = "none"
        if rng.random() < self.config.wrong_turn_rate:
            turn = rng.choice(("error", "detour", "mistake", "mistake"))
        return _Demonstrator(family, task.metadata["facts"], rng, turn)


class _Demonstrator:
    """Turns a family's generator into a responder."""

    def __init__(self, family: Family, facts: dict[str, str], rng: random.Random, turn: Turn) -> None:
        self._steps = family.show(facts, rng, turn)
        self._begun = False
        self._calls = 0

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The next call, in view of the last answer."""
        try:
            call = self._steps.send(messages[-1].content) if self._begun else next(self._steps)
        except StopIteration:
            call = Call("finish", {})
        self._begun = True
        self._calls += 1
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        return Message("assistant", "", (ToolCall(f"call_{self._calls - 1}_0", call.name, arguments),))


def _content(task: Task) -> str:
    return hashlib.sha256(json.dumps([task.instruction, task.files], sort_keys=True).encode()).hexdigest()


@cache
def graded_tasks() -> tuple[Task, ...]:
    """The hand-written tasks, easy ones first."""
    text = resources.files("ale_bash").joinpath("graded.jsonl").read_text()
    return tuple(Task.model_validate_json(line) for line in text.splitlines() if line.strip())
