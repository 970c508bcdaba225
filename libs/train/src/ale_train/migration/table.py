"""Reads the tables of names: `keys.yaml` (keys of configurations) and `plugin_names.yaml` (names of algorithms,
engines and the like). They are data, so that a new name is a new line and no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

FRAMEWORKS = {"verl": "verl", "trl": "TRL", "roll": "ROLL", "verifiers": "verifiers"}
"""The frameworks of the table, and how each is written; `verifiers` holds prime-rl's keys too."""


@dataclass(frozen=True)
class Row:
    """One setting: its key here and its keys elsewhere.

    `here` are keys of a run file, those of a plugin below its section (`algorithm.clip_high`), which `of` names; it is
    empty if ALE has no such setting. `say` is one sentence or more that says what to do instead, or how the meanings
    differ. `values` says what a value of the other framework is here. A name that ends in `.*` means all keys below it.
    `also` are words for it that none of the frameworks has in this form.
    """

    here: tuple[str, ...] = ()
    of: tuple[str, ...] = ()
    say: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    @property
    def all_names(self) -> tuple[str, ...]:
        """Return every name of the row once."""
        return tuple(dict.fromkeys(name for names in (*self.names.values(), self.also) for name in names))

    def homonyms(self, name: str) -> dict[str, list[str]]:
        """Return the row's names that end like `name`, each with the frameworks that use it."""
        last, found = name.rpartition(".")[2], dict[str, list[str]]()
        for key, names in self.names.items():
            for same in names:
                if same == name or (same.rpartition(".")[2] == last != "*"):
                    found.setdefault(same, []).append(FRAMEWORKS[key])
        return found


def _read(name: str) -> Any:
    return yaml.safe_load(files("ale_train.migration").joinpath(name).read_text(encoding="utf-8"))


def _tuple(value: str | list[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


@cache
def rows() -> tuple[Row, ...]:
    """Return the rows of `keys.yaml`, in its order."""
    return tuple(
        Row(
            here=_tuple(row.get("here")),
            of=_tuple(row.get("of")),
            say=row.get("say", ""),
            values=row.get("values", {}),
            names={key: _tuple(row[key]) for key in FRAMEWORKS if key in row},
            also=_tuple(row.get("also")),
        )
        for row in _read("keys.yaml")
    )


@cache
def plugin_names() -> Mapping[str, Mapping[str, str]]:
    """Return what each well-known name of a kind of plugin is here: kind -> name -> sentence."""
    found: Mapping[str, Mapping[str, str]] = _read("plugin_names.yaml")
    return found
