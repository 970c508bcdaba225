"""Writes the table of keys into the glossary, from the table of `ale-migration`: `python tests/key_table.py`."""

from __future__ import annotations

from pathlib import Path

from ale_train.migration.table import FRAMEWORKS, Row, rows

GLOSSARY = Path(__file__).parents[1] / "docs" / "glossary.md"
TITLE = "## Keys of configurations\n"


def render_table() -> str:
    """Return the table in Markdown: one row a setting, our key first, then one column for each framework."""
    head = ["here", *FRAMEWORKS.values(), "to know"]
    lines = [head, ["---"] * len(head), *map(_cells, rows())]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(row: Row) -> list[str]:
    plugins = f" ({', '.join(row.of)})" if row.of else ""
    here = f"{_quoted(row.here)}{plugins}" if row.here else "none"
    values = [f"`{value}`: {meaning}" for value, meaning in row.values.items()]
    notes = " ".join(part for part in (row.say, *values) if part)
    return [here, *(_quoted(row.names.get(key, ())) or "-" for key in FRAMEWORKS), notes.replace("|", "\\|") or "-"]


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def read_table(page: Path = GLOSSARY) -> str:
    """Return the table that stands on a page: the lines with bars below the title."""
    section = page.read_text(encoding="utf-8").partition(TITLE)[2].partition("\n## ")[0]
    return "".join(line for line in section.splitlines(keepends=True) if line.startswith("|"))


def main() -> None:
    """Replace the table on the glossary's page."""
    text = GLOSSARY.read_text(encoding="utf-8")
    GLOSSARY.write_text(text.replace(read_table(), render_table()), encoding="utf-8")


if __name__ == "__main__":
    main()
