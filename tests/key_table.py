"""Writes the list of keys into docs/keys.md, from the table in `ale_train.migration`: `python tests/key_table.py`."""

from __future__ import annotations

import textwrap
from pathlib import Path

from ale_train.migration.table import FRAMEWORKS, Row, rows

PAGE = Path(__file__).parents[1] / "docs" / "keys.md"
TITLE = "## The keys\n\n"
WIDTH = 120


def render_list() -> str:
    """Return the list in Markdown: one item a setting, our key first, then the keys that frameworks have for it."""
    return "".join(f"{_wrapped(_item(row))}\n" for row in rows())


def _item(row: Row) -> str:
    plugins = f" ({', '.join(row.of)})" if row.of else ""
    here = f"**{_quoted(row.here)}**{plugins}" if row.here else "**no key here**"
    names = [f"*{title}*: {_quoted(row.names[key])}" for key, title in FRAMEWORKS.items() if row.names.get(key)]
    values = [f"`{value}`: {meaning}" for value, meaning in row.values.items()]
    return " ".join(part for part in (f"{here}:", " · ".join(names) + ".", row.say, *values) if part)


def _wrapped(item: str) -> str:
    return textwrap.fill(item, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def read_list(page: Path = PAGE) -> str:
    """Return the list that stands on the page: all that follows its title."""
    return page.read_text(encoding="utf-8").partition(TITLE)[2]


def main() -> None:
    """Replace the list on the page."""
    head = PAGE.read_text(encoding="utf-8").partition(TITLE)[0]
    PAGE.write_text(f"{head}{TITLE}{render_list()}", encoding="utf-8")


if __name__ == "__main__":
    main()
