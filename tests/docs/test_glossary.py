"""The glossary has a meaning for every term; its names and the list of keys are those of the table of other
frameworks' names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from key_table import read_list, render_list

from ale_train.migration.table import FRAMEWORKS, rows

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
ITEM = re.compile(r"^- (.+?)(?=^- |^$|\Z)", re.MULTILINE | re.DOTALL)
PLACES = (*FRAMEWORKS.values(), "elsewhere")


@dataclass(frozen=True)
class Term:
    """An item of the glossary: the term, what it means, and its name in each framework that has one."""

    term: str
    meaning: str
    names: dict[str, str]


@pytest.fixture(scope="module")
def terms() -> list[Term]:
    found = []
    for item in ITEM.findall(GLOSSARY.read_text(encoding="utf-8")):
        text = " ".join(item.split())
        start = re.match(r"\*\*(.+?)\*\*: ", text)
        assert start, text
        meaning, *pairs = re.split(rf"(?: ·)? \*({'|'.join(PLACES)})\*: ", text[start.end() :])
        found.append(Term(start[1], meaning, dict(zip(pairs[::2], pairs[1::2], strict=True))))
    return found


def test_the_keys_are_those_of_the_table() -> None:
    assert read_list() == render_list(), "run .venv/bin/python tests/key_table.py"


def test_every_term_has_a_meaning_and_no_empty_name(terms: list[Term]) -> None:
    assert len(terms) > 90
    assert len({term.term for term in terms}) == len(terms)
    for term in terms:
        assert term.meaning.endswith("."), term.term
        assert all(name not in ("", "-") for name in term.names.values()), term.term
    for framework in FRAMEWORKS.values():
        assert sum(framework in term.names for term in terms) >= 30, framework


def test_a_key_of_a_framework_is_not_named_as_another_ones(terms: list[Term]) -> None:
    """What the table knows as a key of one framework does not stand beside another, unless that has it too."""
    owners: dict[str, set[str]] = {}
    for row in rows():
        for framework, names in row.names.items():
            for name in names:
                owners.setdefault(name.rpartition(".")[2], set()).add(FRAMEWORKS[framework])
    seen = 0
    for term in terms:
        for framework in FRAMEWORKS.values():
            for key in re.findall(r"`([\w.]+)`", term.names.get(framework, "")):
                last = key.rpartition(".")[2]
                if last in owners:
                    seen += 1
                    assert framework in owners[last], f"{term.term}: {key} is a key of {owners[last]}"
    assert seen >= 20
