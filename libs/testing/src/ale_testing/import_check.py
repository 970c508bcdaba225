"""This module imports plugins in separate processes, so that the imports cannot harm this process.

`check_imports` starts `python -m ale_testing.import_check_child`, which forks a process for each plugin: it imports the
plugin and writes its findings to a file as JSON. The plugin may print, raise, exit or hang there; after the time limit
its process is killed with everything that it started."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ale.registry.installed import PluginInfo
from ale_testing.import_check_child import EXIT_CODE, LATE, OUTCOME, STDERR, STDOUT, ImportFindings

TIMEOUT_S = 60.0


async def check_import(info: PluginInfo, timeout_s: float = TIMEOUT_S) -> ImportFindings:
    """Import a plugin in a process of its own and say what came of it."""
    (found,) = await check_imports([info], timeout_s)
    return found


async def check_imports(infos: Sequence[PluginInfo], timeout_s: float = TIMEOUT_S) -> list[ImportFindings]:
    """Import each plugin in a process of its own and say what came of it; each may take so many seconds."""
    plugins = [f"{info.kind} {f'{info.package}:{info.name}' if info.package else info.target}" for info in infos]
    with tempfile.TemporaryDirectory(prefix="ale-probe-", ignore_cleanup_errors=True) as folder:
        checker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ale_testing.import_check_child", folder, str(timeout_s), *plugins),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            await checker.wait()
        finally:
            with suppress(ProcessLookupError):
                checker.terminate()  # at which it ends what it has forked
            await checker.wait()
        return [_read_findings(Path(folder, str(number)), timeout_s) for number in range(len(infos))]


def _read_findings(folder: Path, timeout_s: float) -> ImportFindings:
    """What a process that has ended wrote and printed."""
    code = (folder / EXIT_CODE).read_text()
    if code == LATE:
        return ImportFindings(f"Its import is not done after {timeout_s:g} s and was ended; something in it waits.")
    if not (folder / OUTCOME).exists():
        last = _lines(folder / STDERR)[-1:]
        return ImportFindings(
            f"Its import ended the process with exit code {code}{f' ({last[0][:200]})' if last else ''}."
        )
    found = json.loads((folder / OUTCOME).read_text())
    garbage = _lines(folder / STDOUT)[:1]
    if garbage and found["problem"] is None:
        found["problem"] = f"It prints on import, which spoils what others print: {garbage[0][:80]!r}."
    rows = tuple(map(tuple, found.pop("config")))
    return ImportFindings(**{**found, "config": rows, "capabilities": tuple(found["capabilities"])})


def _lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        text = file.read(1 << 16).decode("utf-8", "replace")
    return [line for raw in text.splitlines() if (line := "".join(c for c in raw if c.isprintable()).strip())]
