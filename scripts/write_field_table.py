"""Write the table of request fields into docs/endpoint.md, from the tables that the endpoint goes by.

python scripts/write_field_table.py          # writes the page
python scripts/write_field_table.py --check  # ends with 1 if the page is not current
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from ale_endpoint.dialects.field_tables import ANTHROPIC_MESSAGES, CHAT_COMPLETIONS, RESPONSES
from ale_endpoint.dialects.fields import OTHERS, Rule, Table

PAGE = Path(__file__).parent.parent / "docs" / "endpoint.md"
BEGIN, END = "<!-- fields: begin -->\n", "<!-- fields: end -->\n"
TABLES = {"Chat completions": CHAT_COMPLETIONS, "Responses": RESPONSES, "Anthropic messages": ANTHROPIC_MESSAGES}


def rows(table: Table) -> Iterator[str]:
    """Yield the lines of one API: fields of one object with the same fate share a line."""
    yield "| object | fields | session | another server | |"
    yield "| --- | --- | --- | --- | --- |"
    for name, shape in table.items():
        shown = name.replace("[]", "[no type]").replace("[*]", "[others]")
        if isinstance(shape, Rule):
            yield f"| `{shown}` | all | {shape.session} | {shape.upstream} | {shape.note} |"
            continue
        alike: dict[tuple[str, str, str], list[str]] = {}
        for field, rule in shape.items():
            note = "; ".join(filter(None, (f"as `{rule.to}`" if rule.to else "", rule.note)))
            alike.setdefault((rule.session, rule.upstream, note), []).append(
                "others" if field == OTHERS else f"`{field}`"
            )
        for (session, upstream, note), fields in alike.items():
            yield f"| `{shown}` | {', '.join(fields)} | {session} | {upstream} | {note} |"


def section() -> str:
    """Return the generated part of the page."""
    parts = [f"### {title}\n\n" + "\n".join(rows(table)) + "\n" for title, table in TABLES.items()]
    return BEGIN + "\n" + "\n".join(parts) + "\n" + END


def current(page: str) -> str:
    """Return the page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + section() + after


if __name__ == "__main__":
    found = PAGE.read_text()
    if "--check" in sys.argv:
        sys.exit(found != current(found))
    PAGE.write_text(current(found))
