"""`ale plugins list`, `check` and `info`: from metadata, by importing each in a process of its own, and one in detail."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from ale.errors import PluginError
from ale.installed import PluginInfo, list_plugins
from ale.specs.kinds import CAPABILITIES

CORE = "ale-core"


def show(kind: str | None, as_json: bool) -> None:
    """Print what is installed."""
    infos = list_plugins(kind)
    if as_json:
        print(json.dumps([asdict(info) for info in infos], indent=2))
        return
    if not infos:
        print(
            f"No {kind + ' ' if kind else ''}plugin is installed; `pip install 'ale-core[quickstart]'` brings the usual ones."
        )
        return
    rows = [("KIND", "NAME", "PACKAGE", "VERSION", "API", "STATUS", "SUMMARY")]
    rows += [(i.kind, i.name, i.package, i.version, i.api_version or "-", i.status, i.summary) for i in infos]
    print_table(rows)
    for info in infos:
        if info.status != "ok":
            print(f"\n{info.status}: {info.kind} '{info.name}' of {info.package} {info.version}. {info.reason}")
    if kind is None and all(info.package == CORE for info in infos):
        print(
            "\nThese come with the core; `pip install 'ale-core[quickstart]'` brings the usual ones of the other kinds."
        )


def check(kind: str | None, as_json: bool, timeout_s: float) -> int:
    """Import every installed plugin; 1 where one fails. A shadowed one is checked like any other."""
    from ale.probe import Probed, probe

    infos = list_plugins(kind)
    slots = asyncio.Semaphore(min(4, os.cpu_count() or 1))

    async def one(info: PluginInfo) -> Probed:
        if info.status in ("broken", "incompatible"):
            return Probed(info.reason)
        async with slots:
            return await probe(info, timeout_s)

    async def every() -> list[Probed]:
        return await asyncio.gather(*map(one, infos))

    found = list(zip(infos, asyncio.run(every()), strict=True))
    failed = sum(probed.problem is not None for _, probed in found)
    if as_json:
        keys = ("kind", "name", "package", "version")
        print(json.dumps([
            {**{key: getattr(info, key) for key in keys}, "ok": probed.problem is None, "problem": probed.problem,
             "warnings": probed.warnings} for info, probed in found
        ], indent=2))  # fmt: skip
        return 1 if failed else 0
    for info, probed in found:
        print(
            f"{'ok    ' if probed.problem is None else 'FAILED'}  {info.kind} '{info.name}' of {info.package} {info.version}"
        )
        for line in (*([probed.problem] if probed.problem else []), *(f"warning: {w}" for w in probed.warnings)):
            print(textwrap.indent(line, " " * 8))
    print(f"{len(found)} checked, {failed} failed.")
    return 1 if failed else 0


def info(kind: str, name: str) -> None:
    """Print all that is known of one plugin. Raises `PluginError` where it cannot be imported."""
    from ale.plugins import find_plugin
    from ale.probe import probe

    found = find_plugin(kind, name)
    probed = asyncio.run(probe(found))
    if not probed.location:
        raise PluginError(f"{kind} '{name}' of {found.package} {found.version}: {probed.problem}")
    print(f"{kind} {found.name}: {found.summary}\n")
    print(f"package       {found.package} {found.version}")
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
    for line in (*([probed.problem] if probed.problem else []), *probed.warnings):
        print(f"\nwarning: {line}")


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Columns aligned with blanks; at a terminal the last one is wrapped where it stands, elsewhere it is free."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    indent = sum(widths) + 2 * len(widths)
    room = shutil.get_terminal_size().columns - indent if sys.stdout.isatty() else 0
    for row in rows:
        start = "".join(cell.ljust(width) + "  " for cell, width in zip(row, widths, strict=False))
        lines = textwrap.wrap(row[-1], room) if room >= 30 else [row[-1]]
        print((start + f"\n{' ' * indent}".join(lines)).rstrip())
