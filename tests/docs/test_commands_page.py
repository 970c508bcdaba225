"""The page of commands has every command that our packages bring."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")


def test_every_command_of_a_package_has_a_line() -> None:
    commands = {f"ale {entry.name.replace('.', ' ')}" for entry in entry_points(group="ale.commands")}
    assert len(commands) > 15
    missing = sorted(command for command in commands if not re.search(rf"^{command}\b", PAGE, re.MULTILINE))
    assert not missing, f"give {', '.join(missing)} a line in docs/commands.md"
