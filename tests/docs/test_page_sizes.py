"""Pages that people can read: none is very long without a reason, and the lines of their text fit."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
READMES = [*sorted(ROOT.glob("*.md")), ROOT / "core" / "README.md", *sorted(ROOT.glob("*/*/README.md"))]
MOST_WORDS = 2500
MOST_COLUMNS = 120
LONG = {
    "data_and_rewards": "one walk, whose commands a test runs in order",
    "endpoint": "tables of every field of a request, written from the code",
    "glossary": "a list, in which readers look words up",
    "metrics": "tables of every metric, which a test keeps whole",
}
"""Pages with more words, and why."""


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_a_page_is_not_too_long(page: Path) -> None:
    words = len(page.read_text(encoding="utf-8").split())
    assert (words > MOST_WORDS) == (page.stem in LONG), f"{words} words"


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


@pytest.mark.parametrize("page", [*DOCS, *READMES], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_lines_of_its_text_fit(page: Path) -> None:
    fenced = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if not fenced and not line.lstrip().startswith(("|", "![")):  # tables and pictures cannot be wrapped
            assert len(line) <= MOST_COLUMNS, f"line {number} has {len(line)} columns"
