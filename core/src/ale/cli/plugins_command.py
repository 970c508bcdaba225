"""`ale plugins list`: a table, or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from ale.errors import ConfigError
from ale.installed import list_plugins
from ale.specs.kinds import KINDS


def show(kind: str | None, as_json: bool) -> None:
    """Print what is installed."""
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"There is no kind of plugin '{kind}'. The kinds: {', '.join(KINDS)}.")
    infos = list_plugins(kind)
    if as_json:
        print(json.dumps([asdict(info) for info in infos], indent=2))
        return
    rows = [("KIND", "NAME", "PACKAGE", "VERSION", "STATUS", "SUMMARY")]
    rows += [(i.kind, i.name, i.package, i.version, i.status, i.summary) for i in infos]
    print_table(rows)


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Columns aligned with blanks; the last one is free."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip())
