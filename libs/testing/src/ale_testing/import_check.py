"""This module imports one plugin in a separate process, so that the import cannot harm this process.

`check_import` starts `python -m ale_testing.import_check_child KIND PACKAGE:NAME FILE`, which imports the plugin and
writes its findings to the file as JSON. The plugin may print, raise, exit or hang there; after the time limit the
parent process kills the child with everything that it started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from ale.registry.installed import PluginInfo
from ale_testing.import_check_child import ImportFindings

TIMEOUT_S = 60.0


async def check_import(info: PluginInfo, timeout_s: float = TIMEOUT_S) -> ImportFindings:
    """Import a plugin in a child process and say what came of it."""
    with tempfile.TemporaryDirectory(prefix="ale-probe-") as folder, ExitStack() as files:
        stdout, stderr = (files.enter_context(path.open("wb")) for path in _paths(folder)[1:])
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "ale_testing.import_check_child",
            info.kind,
            f"{info.package}:{info.name}",
            str(_paths(folder)[0]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout_s):
                code = await child.wait()
        except TimeoutError:
            return ImportFindings(f"Its import is not done after {timeout_s:g} s and was ended; something in it waits.")
        finally:
            with suppress(ProcessLookupError):  # also what the import started and left running
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
        return _child_output(folder, code)


def _paths(folder: str) -> tuple[Path, Path, Path]:
    return Path(folder, "outcome.json"), Path(folder, "stdout"), Path(folder, "stderr")


def _child_output(folder: str, code: int) -> ImportFindings:
    """What a child that has ended wrote and printed."""
    outcome, stdout, stderr = _paths(folder)
    if not outcome.exists():
        last = _lines(stderr)[-1:]
        return ImportFindings(
            f"Its import ended the process with exit code {code}{f' ({last[0][:200]})' if last else ''}."
        )
    found = json.loads(outcome.read_text())
    garbage = _lines(stdout)[:1]
    if garbage and found["problem"] is None:
        found["problem"] = f"It prints on import, which spoils what others print: {garbage[0][:80]!r}."
    rows = tuple(map(tuple, found.pop("config")))
    return ImportFindings(**{**found, "config": rows, "capabilities": tuple(found["capabilities"])})


def _lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        text = file.read(1 << 16).decode("utf-8", "replace")
    return [line for raw in text.splitlines() if (line := "".join(c for c in raw if c.isprintable()).strip())]
