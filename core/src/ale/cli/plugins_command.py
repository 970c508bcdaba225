"""`ale plugins list` shows what is installed, from metadata alone; `print_table` prints tables for all commands."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from ale.registry.installed import list_plugins


def show(kind: str | None, as_json: bool) -> None:
    """Print the installed plugins."""
    infos = list_plugins(kind)
    if as_json:
        print(json.dumps([asdict(info) for info in infos], indent=2))
        return
    if not infos:
        print(
            f"No {kind + ' ' if kind else ''}plugin is installed; `pip install 'ale-core[quickstart]'` brings the "
            "usual ones."
        )
        return
    rows = [("KIND", "NAME", "PACKAGE", "VERSION", "STATUS", "SUMMARY")]
    rows += [(i.kind, i.name, i.package, i.version, i.status, i.summary) for i in infos]
    print_table(rows)
    for info in infos:
        if info.status != "ok":
            print(f"\n{info.status}: {info.kind} '{info.name}' of {info.package} {info.version}. {info.reason}")


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print columns aligned with blanks; the last one is wrapped at a terminal, and not wrapped elsewhere."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    indent = sum(widths) + 2 * len(widths)
    room = shutil.get_terminal_size().columns - indent if sys.stdout.isatty() else 0
    for row in rows:
        start = "".join(cell.ljust(width) + "  " for cell, width in zip(row, widths, strict=False))
        lines = textwrap.wrap(row[-1], room) if room >= 30 else [row[-1]]
        print((start + f"\n{' ' * indent}".join(lines)).rstrip())
