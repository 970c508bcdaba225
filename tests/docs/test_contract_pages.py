"""The contracts on the plugin author's pages are those of the code, and can be read as they are."""

from __future__ import annotations

import importlib
import re

import pytest
from contract_text import PAGES, filled

from ale.registry.drivers import CONTRACTS

ALL = sorted(PAGES.glob("*.md"))


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.stem)
def test_it_says_what_the_code_says(page: object) -> None:
    found = page.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    assert found == filled(found), "run .venv/bin/python tests/contract_text.py and commit what it writes"
    assert not re.search(r"^::: ", found, re.MULTILINE), "this shows nothing unless the site is built"


@pytest.mark.parametrize("kind", CONTRACTS)
def test_every_method_that_a_plugin_must_have_stands_on_the_page_of_its_kind(kind: str) -> None:
    text = (PAGES / f"{kind}.md").read_text(encoding="utf-8")
    contract = getattr(importlib.import_module(f"ale.specs.{kind}"), CONTRACTS[kind])
    methods = sorted(contract.__abstractmethods__)
    assert methods
    for name in methods:
        assert re.search(rf"^- `(async )?{name}[(:]", text, re.MULTILINE), name


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("reward", ["uses_sandbox", "open_another", "GradedSandbox"]),
        ("scaffold", ["uses_sandbox", "reward: float | None=None"]),
        ("sandbox", ["image_from", "`builds`"]),
        ("tasks", ["`tests`", "`build`", "`resources`", "`network`", "`timeout_s`", "`messages`", "`metadata`"]),
        ("data", ["by_chunk", "parts", "reward: float | None = None", "resources: Resources | None = None"]),
    ],
)
def test_what_authors_look_for_is_there(page: str, words: list[str]) -> None:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    for word in words:
        assert word in text, word


def test_a_change_of_the_code_is_seen() -> None:
    text = (PAGES / "reward.md").read_text(encoding="utf-8")
    changed = text.replace("async score(", "async judge(")
    assert changed != text
    assert filled(changed) == text
