"""The glossary's columns and keys are those of the table of names from other frameworks."""

from __future__ import annotations

import re

import pytest
from key_table import GLOSSARY, read_table, render_table

from ale_train.migration.table import FRAMEWORKS, rows

COLUMNS = ["term", "meaning", *FRAMEWORKS.values(), "others"]
Terms = list[dict[str, str]]


@pytest.fixture(scope="module")
def terms() -> Terms:
    """Each row of the glossary's tables of terms, by column."""
    text = GLOSSARY.read_text().partition("## Keys of configurations")[0]
    lines = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line] for line in lines]
    assert all(len(line) == len(COLUMNS) for line in cells), [line[0] for line in cells if len(line) != len(COLUMNS)]
    return [dict(zip(COLUMNS, line, strict=True)) for line in cells if line[0] not in ("term", "---")]


def test_the_keys_are_those_of_the_table() -> None:
    assert read_table() == render_table(), "run .venv/bin/python tests/key_table.py"


def test_every_term_has_a_meaning_and_a_cell_for_each_framework(terms: Terms) -> None:
    assert len(terms) > 90
    assert len({term["term"] for term in terms}) == len(terms)
    for term in terms:
        assert term["meaning"].endswith("."), term["term"]
        assert all(term.values()), term["term"]
    for framework in FRAMEWORKS.values():
        assert sum(term[framework] != "-" for term in terms) >= 30, framework


def test_a_key_in_a_column_of_terms_is_a_key_of_that_framework(terms: Terms) -> None:
    """What the table knows as a key of one framework does not stand in the column of another, unless it has it too."""
    owners: dict[str, set[str]] = {}
    for row in rows():
        for framework, names in row.names.items():
            for name in names:
                owners.setdefault(name.rpartition(".")[2], set()).add(FRAMEWORKS[framework])
    seen = 0
    for term in terms:
        for framework in FRAMEWORKS.values():
            for key in re.findall(r"`([\w.]+)`", term[framework]):
                last = key.rpartition(".")[2]
                if last in owners:
                    seen += 1
                    assert framework in owners[last], f"{term['term']}: {key} is a key of {owners[last]}"
    assert seen >= 20
