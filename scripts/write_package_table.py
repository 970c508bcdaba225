"""Writes core/src/ale/registry/packages.json: which of our packages brings which plugin and which command.

It reads the pyproject.toml files alone, so nothing need be installed. Run it after an entry point has changed; a test
fails while the table is out of date.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "core/src/ale/registry/packages.json"
COMMANDS = "ale.commands"
NO_PLUGINS = (COMMANDS, "ale.doctor", "ale.hints", "ale.readers")
"""Groups of entry points that name no plugins of a run file."""


def make_table() -> dict[str, Any]:
    """Return what the table must hold: the names of all packages, then who brings each command and each plugin."""
    packages: list[str] = []
    commands: dict[str, str] = {}
    plugins: dict[str, dict[str, str]] = {}
    for file in [
        ROOT / "core/pyproject.toml",
        *ROOT.glob("libs/*/pyproject.toml"),
        *ROOT.glob("plugins/*/pyproject.toml"),
    ]:
        about = tomllib.loads(file.read_text())["project"]
        packages.append(about["name"])
        for group, entries in about.get("entry-points", {}).items():
            if group == COMMANDS:
                commands |= {name.replace(".", " "): about["name"] for name in entries}
            elif group.startswith("ale.") and group not in NO_PLUGINS:
                plugins.setdefault(group.removeprefix("ale."), {}).update(dict.fromkeys(entries, about["name"]))
    return {"packages": packages, "commands": commands, "plugins": plugins}


def to_text(table: dict[str, Any]) -> str:
    """Return the table as the file's text, sorted, so that it is the same on every machine."""
    return json.dumps(table | {"packages": sorted(table["packages"])}, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    TABLE.write_text(to_text(make_table()))
    print(TABLE.relative_to(ROOT))
