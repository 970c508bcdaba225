"""Commands that installed packages add to `ale`, through the entry-point group `ale.commands`.

The entry point's name is the command with dots between its words (`report`, `plugins.new`); its value is a typer
application or a function that typer can read. Only the package whose command was typed is imported; for `--help` and
for an unknown word all of them are."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import metadata

import typer

log = logging.getLogger("ale.cli")
COMMANDS = "ale.commands"


def add_commands(app: typer.Typer, groups: dict[str, typer.Typer], words: Sequence[str]) -> None:
    """Add the commands that these words may mean to `app` and to its `groups`, which are given by their names."""
    if words and words[0] in {command.name for command in app.registered_commands}:
        return
    found = sorted(metadata.entry_points(group=COMMANDS), key=lambda entry: entry.name.count("."))
    wanted = [entry for entry in found if _may_mean(words, entry.name.split("."))]
    whole = bool(words) and (words[0] in groups or any("." not in entry.name for entry in wanted))
    for entry in wanted if whole else found:
        try:
            _add(app, groups, entry)
        except Exception as error:
            _warn("the command '%s' cannot be loaded: %s", entry.name.replace(".", " "), error)


def _may_mean(words: Sequence[str], name: Sequence[str]) -> bool:
    """Return whether the words begin with the command, or name a group that contains it (as for the group's help)."""
    typed = [word for word in words[: len(name)] if not word.startswith("-")]
    return bool(typed) and list(name[: len(typed)]) == typed


def _add(app: typer.Typer, groups: dict[str, typer.Typer], entry: metadata.EntryPoint) -> None:
    *above, name = entry.name.split(".")
    parent = groups[above[0]] if above else app
    command = entry.load()
    if isinstance(command, typer.Typer):
        parent.add_typer(command, name=name)
        groups[name] = command
    else:
        parent.command(name)(command)


def _warn(message: str, what: object, error: Exception) -> None:
    from ale.registry.validation import describe_error  # it imports pydantic, which `ale --help` does without

    log.warning(message, what, describe_error(error))
