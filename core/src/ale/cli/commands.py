"""Commands that installed packages add to `ale`, through the entry-point group `ale.commands`.

The entry point's name is the command with dots between its words (`report`, `plugins.new`); its value is a typer
application or a function that typer can read. Only the package whose command was typed is imported; for `--help` and
for an unknown word, all that add a command of one word are. Their modules import what they need when a command runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from importlib import metadata

import typer

from ale.registry.entry_points import find_entry_points

log = logging.getLogger("ale.cli")
COMMANDS = "ale.commands"


def add_commands(app: typer.Typer, groups: dict[str, typer.Typer], words: Sequence[str]) -> None:
    """Add the commands that these words may mean to `app` and to its `groups`, which are given by their names."""
    if words and words[0] in {command.name for command in app.registered_commands}:
        return
    found = sorted(_installed_commands(), key=lambda entry: entry.name.count("."))
    wanted = [entry for entry in found if _may_mean(words, entry.name.split("."))]
    whole = bool(words) and (words[0] in groups or any("." not in entry.name for entry in wanted))
    for entry in wanted if whole else (entry for entry in found if "." not in entry.name):
        try:
            _add(app, groups, entry)
        except Exception as error:
            _warn("the command '%s' cannot be loaded: %s", entry.name.replace(".", " "), error)


def explain_unknown(words: Sequence[str]) -> str:
    """Return a sentence about words that mean no installed command: which package brings it, if one of ours does."""
    from ale.registry.packages import find_command

    known = find_command(words)
    if known is not None and known[0] not in {entry.name.replace(".", " ") for entry in _installed_commands()}:
        return f"`ale {known[0]}` comes with {known[1]}, which is not installed: `pip install {known[1]}`."
    return "Packages bring commands of their own; `pip install 'ale-core[all]'` has all of ours."


def _installed_commands() -> Iterator[metadata.EntryPoint]:
    """Yield every entry point of the group."""
    seen: set[tuple[str, str]] = set()
    for _, entries in find_entry_points([COMMANDS]):
        for entry in entries:
            if (entry.name, entry.value) not in seen:  # a package may be on the path twice
                seen.add((entry.name, entry.value))
                yield entry


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
