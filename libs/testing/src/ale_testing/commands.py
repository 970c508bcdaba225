"""This module has the commands that import plugins or are for plugin authors: `ale plugins check`, `info` and `new`,
and `ale config schema`."""

from __future__ import annotations

import asyncio
import json
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from ale.cli.out_option import out_option
from ale.cli.plugins_command import print_table
from ale.errors import ConfigError, PluginError
from ale.registry.drivers import find_plugin
from ale.registry.installed import PluginInfo, list_plugins
from ale.specs.kinds import CAPABILITIES
from ale_testing.import_check import check_import, check_imports
from ale_testing.import_check_child import ImportFindings


def check(
    plugin: Annotated[
        str | None,
        typer.Argument(metavar="[PLUGIN]", help="Only this one: NAME, PACKAGE:NAME, or a class, ./mine.py:Mine."),
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Only this kind, such as sandbox.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Seconds that one import may take.")] = 60.0,
) -> None:
    """Import each plugin, or one, in a process of its own; the exit code is 1 where one fails."""
    raise typer.Exit(check_plugins(kind, plugin, as_json, timeout_s))


def info(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Such as sandbox.")],
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="NAME, PACKAGE:NAME where two bring it, or a class: ./mine.py:Mine, module:Mine."
        ),
    ],
) -> None:
    """One plugin: its settings, its capabilities, where it is loaded from."""
    show_plugin(kind, name)


def new(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="Such as sandbox; hooks for an observer; environment for tasks, scaffold and reward around an "
            "environment with reset and step.",
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="What run files will call it.")],
    hooks: Annotated[bool, typer.Option("--hooks", help="Add an observer beside the driver.")] = False,
    out: Annotated[Path, out_option("Folder to write the package into.", "FOLDER")] = Path(),
) -> None:
    """Write the package of a new plugin, with a driver that works and tests that pass; a package of that name that is
    there already gets it beside what it has."""
    from ale_testing.new_plugin import write_plugin

    write_plugin(kind, name, hooks, out)


def schema() -> None:
    """JSON Schema of a run file with what is installed."""
    from ale_testing.run_schema import run_schema

    print(json.dumps(run_schema(), indent=2))


def check_plugins(kind: str | None, plugin: str | None, as_json: bool, timeout_s: float) -> int:
    """Import every installed plugin, or one; 1 where one fails. A shadowed one is checked like any other."""
    infos = list_plugins(kind) if plugin is None else _named(kind, plugin)
    sound = [info for info in infos if info.status not in ("broken", "incompatible")]
    probes = dict(zip(sound, asyncio.run(check_imports(sound, timeout_s)), strict=True))
    found = [(info, probes.get(info, ImportFindings(info.reason))) for info in infos]
    failed = sum(probed.problem is not None for _, probed in found)
    if as_json:
        keys = ("kind", "name", "package", "version")
        print(
            json.dumps(
                [
                    {
                        **{key: getattr(info, key) for key in keys},
                        "ok": probed.problem is None,
                        "problem": probed.problem,
                    }
                    for info, probed in found
                ],
                indent=2,
            )
        )
        return 1 if failed else 0
    for info, probed in found:
        print(f"{'ok    ' if probed.problem is None else 'FAILED'}  {_describe_owner(info)}")
        if probed.problem:
            print(textwrap.indent(probed.problem, " " * 8))
    print(f"{len(found)} checked, {failed} failed.")
    return 1 if failed else 0


def _named(kind: str | None, plugin: str) -> list[PluginInfo]:
    """The plugins of this name. Raises `ConfigError` where there are none."""
    if kind is not None:
        return [find_plugin(kind, plugin)]
    found = [info for info in list_plugins() if plugin in (info.name, f"{info.package}:{info.name}")]
    if not found:
        raise ConfigError(f"Of which kind is '{plugin}'? Add --kind, such as --kind reward.")
    return found


def _describe_owner(info: PluginInfo) -> str:
    """What a plugin is called in a list: its kind and name, and the package that brings it."""
    return f"{info.kind} '{info.name}' of {info.package} {info.version}" if info.package else f"class {info.target}"


def show_plugin(kind: str, name: str) -> None:
    """Print all that is known of one plugin. Raises `PluginError` where it cannot be imported."""
    found = find_plugin(kind, name)
    probed = asyncio.run(check_import(found))
    if not probed.location:
        raise PluginError(f"{_describe_owner(found)}: {probed.problem}")
    print(f"{kind} {found.name}: {found.summary or probed.summary}\n")
    print(f"package       {found.package or 'none, a class of your own'} {found.version}".rstrip())
    print(f"loaded from   {probed.location} ({found.target})")
    print(f"api version   {probed.api_version or 'not declared'}")
    if probed.capabilities:
        meanings = CAPABILITIES[kind]
        for i, word in enumerate(probed.capabilities):
            print(f"{'capabilities' if i == 0 else '':14}{word}{': ' + meanings[word] if word in meanings else ''}")
    else:
        print("capabilities  none")
    print()
    if probed.config:
        print_table([("KEY", "TYPE", "DEFAULT", "MEANING"), *probed.config])
    else:
        print("It has no settings.")
    if probed.problem:
        print(f"\nwarning: {probed.problem}")
