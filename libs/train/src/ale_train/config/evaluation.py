"""The keys of the section `eval`, and of an evaluation set in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from ale.config.plugin_field import PluginField
from ale.registry.validation import Mistake, Mistakes, validate
from ale.specs.choice import PluginChoice, Section

_NAME = re.compile(r"[A-Za-z0-9][\w-]*")


class EvaluationKeys(Section):
    """What an evaluation set may change."""

    episodes: int = Field(
        128,
        gt=0,
        description="Most episodes of one evaluation. Without n, there are exactly so many: tasks are repeated if "
        "there are fewer.",
    )
    n: int | None = Field(
        None,
        gt=0,
        description="Episodes of each task, for pass@k: as many tasks as fit into `episodes`, none repeated. null: as "
        "many as it takes.",
    )
    split: str = Field("heldout", description="Split of the task source that is evaluated.")
    tags: tuple[str, ...] = Field((), description="Only tasks with all of these tags; `!tag`: without it.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling.")
    top_k: int = Field(0, ge=0, description="Sample among the k most likely tokens only; 0: all.")
    max_tokens: int | None = Field(
        None, gt=0, description="Most tokens in one response; null: those of rollout.max_tokens."
    )

    @field_validator("tags", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value


class EvaluationSet(EvaluationKeys):
    """A named evaluation set; a key that is left out is that of `eval`."""

    tasks: Annotated[PluginChoice | None, PluginField("tasks")] = Field(
        None, description="A task source of its own; null: that of the run."
    )


def _read_sets(value: Any) -> Any:
    """Return the sets by name; what is no mapping is left to pydantic. Raises all mistakes, with their paths."""
    if not isinstance(value, dict):
        return value
    found: list[Mistake] = []
    sets: dict[str, EvaluationSet] = {}
    for name, section in value.items():
        try:
            if not _NAME.fullmatch(str(name)):
                sentence = f"{name!r} cannot name an evaluation set: use letters, digits, '_' and '-'."
                raise Mistakes([((), sentence)])
            sets[str(name)] = section if isinstance(section, EvaluationSet) else validate(EvaluationSet, section)
        except Mistakes as mistakes:
            found += [((str(name), *path), sentence) for path, sentence in mistakes.found]
    if found:
        raise Mistakes(found).as_validation_error()
    return sets


Sets = Annotated[
    dict[str, Any],
    BeforeValidator(_read_sets),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "object"}}),
]
"""Evaluation sets by name. Each is an `EvaluationSet`, which the type hides: it has no fixed place in a file."""


class EvaluationConfig(EvaluationKeys):
    """Held-out evaluation, always from the beginning of the task."""

    every: int = Field(
        15, ge=0, description="Number of RL steps between evaluations; 0: evaluate only before and after RL."
    )
    sets: Sets = Field(
        {},
        description="Named evaluation sets, such as `{easy: {tags: easy}, hard: {split: hard, n: 4}}`. Each has the "
        "keys of eval, and `tasks` for a task source of its own; a key that it leaves out is that of eval.",
    )
    label: str = Field(
        "of_the_policy", min_length=1, description="Name of the evaluation in a run that trains nothing."
    )

    @model_validator(mode="after")
    def _enough_episodes(self) -> EvaluationConfig:
        for name, chosen in self.chosen_sets().items():
            if chosen.n is not None and chosen.n > chosen.episodes:
                where = f"the set '{name}': " if name else ""
                raise ValueError(
                    f"{where}n is {chosen.n}, which is more than the {chosen.episodes} of 'episodes', the most of one "
                    "evaluation: give at least as many episodes"
                )
        return self

    def chosen_sets(self) -> dict[str, EvaluationSet]:
        """Return what is evaluated by name, with every key filled in: the sets, or one without a name."""
        sets: dict[str, EvaluationSet] = self.sets
        mine = {key: getattr(self, key) for key in EvaluationKeys.model_fields}
        if not sets:
            return {"": EvaluationSet(**mine)}
        return {
            name: chosen.model_copy(update={k: v for k, v in mine.items() if k not in chosen.model_fields_set})
            for name, chosen in sets.items()
        }

    def splits(self, path: str) -> Sequence[str]:
        """Return the splits that are evaluated of the task source at this path of the run file, such as `tasks`."""
        sets = {f"eval.sets.{name}.tasks": chosen for name, chosen in self.chosen_sets().items()}
        if path in sets:
            return [sets[path].split]
        return [*dict.fromkeys(chosen.split for chosen in sets.values() if chosen.tasks is None)]
