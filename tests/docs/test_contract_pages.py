"""The contracts on the plugin author's pages: every kind has its own, every module that is named exists, and every
method that a plugin must have is written in it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from ale.registry.drivers import CONTRACTS

PAGES = Path(__file__).parents[2] / "docs" / "plugins"
PLACE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
"""A place that mkdocstrings fills with the public contents of a module."""


def modules_on(page: Path) -> list[str]:
    return PLACE.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", CONTRACTS)
def test_the_page_of_a_kind_shows_its_contract(kind: str) -> None:
    assert f"ale.specs.{kind}" in modules_on(PAGES / f"{kind}.md")
    contract = getattr(importlib.import_module(f"ale.specs.{kind}"), CONTRACTS[kind])
    for name in sorted(contract.__abstractmethods__):
        assert getattr(contract, name).__doc__, f"{contract.__name__}.{name} has no docstring, so no page shows it"


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_every_module_on_a_page_exists_and_says_what_it_is(page: Path) -> None:
    for name in modules_on(page):
        assert importlib.import_module(name).__doc__, name


def test_the_types_of_the_contracts_are_on_the_page_of_data() -> None:
    assert modules_on(PAGES / "data.md") == ["ale.task", "ale.trajectory", "ale.messages", "ale.errors"]
