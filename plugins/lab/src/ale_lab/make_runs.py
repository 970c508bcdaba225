"""Makes the runs of an experiment with the `ale` command, as a user would type it, a few at once.

A run is finished if its folder holds a summary that says so; the resolved configuration beside it must be the wanted
one. A finished run is not made again, an interrupted one is repeated. A run that fails does not stop
the others; all failures are reported at the end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ale.errors import AleError, ConfigError
from ale.store.run_store import CONFIG_NAME, DB_NAME, SUMMARY_NAME, lock_folder
from ale_lab.run_plan import Run
from ale_train.config.load import load_run_config

STOP_S = 20.0
"""How long a run may take to clean up when it is stopped."""
ERROR_LINES = 5


def is_finished(folder: Path) -> bool:
    """Whether a run folder holds a run that was completed. Raises `ConfigError` where it cannot be read."""
    try:
        return bool(json.loads((folder / SUMMARY_NAME).read_text())["status"] == "completed")
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError(f"The run folder {folder} cannot be read: {error.strerror}; give another --out.") from None


def unfinished_runs(runs: Sequence[Run]) -> list[Run]:
    """The runs that are still to be made. Raises `ConfigError` where a run's settings are wrong, or its folder holds a
    run with other settings."""
    return [run for run in runs if not _is_done(run)]


async def make_runs(runs: Sequence[Run], jobs: int, log: Callable[[str], None]) -> None:
    """Make the runs that are not finished, `jobs` at once. Raises `ConfigError`, and `AleError` where some failed."""
    wanted = unfinished_runs(runs)
    failed: list[str] = []
    slots = asyncio.Semaphore(jobs)

    async def one(run: Run) -> None:
        async with slots:
            began = time.monotonic()
            try:
                error = await _execute(run)
            except OSError as problem:
                error = str(problem)
            seconds = time.monotonic() - began
            log(f"{run.name}: {'failed' if error else 'done'} after {seconds:.0f} s")
            if error:
                failed.append(f"{run.name}: {error} ({_log(run)})")

    async with asyncio.TaskGroup() as group:
        for run in wanted:
            group.create_task(one(run))
    if failed:
        raise AleError(
            "\n".join([f"{len(failed)} of {len(wanted)} runs failed; the same command runs them again:", *failed])
        )


def _is_done(run: Run) -> bool:
    """Whether the run is finished. Raises `ConfigError` where its folder holds a run with other settings, or where its
    own settings are wrong."""
    wanted = load_run_config(run.recipe, list(run.overrides)).to_yaml()
    if not is_finished(run.folder):
        return False
    if (run.folder / CONFIG_NAME).read_text() != wanted:
        raise ConfigError(
            f"{run.folder} holds a run with other settings than '{run.name}' has now; give another --out, or remove it "
            f"(`ale config diff` shows the differences)."
        )
    return True


async def _execute(run: Run) -> str:
    """Make one run; returns the last lines of its log where it failed, else an empty string."""
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    ale = shutil.which("ale", path=places)
    if ale is None:
        return "there is no command 'ale' beside Python or on PATH"
    if (run.folder / DB_NAME).exists():
        try:
            lock = lock_folder(run.folder)  # two labs share warm starts
        except ConfigError as error:
            return str(error)
        try:
            if _is_done(run):
                return ""  # another lab has made it meanwhile
            shutil.rmtree(run.folder)
        finally:
            os.close(lock)
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    command = (ale, "run", str(run.recipe), *run.overrides, "--out", str(run.folder))
    with _log(run).open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=asyncio.subprocess.STDOUT
        )
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await _stop(process)
            raise
    if code == 0:
        return ""
    lines = _log(run).read_text(errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("error: ")] or lines[-ERROR_LINES:]
    return " ".join(line.removeprefix("error: ") for line in errors) or f"exit code {code}"


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Ask a run to end, which cleans up its sandboxes; kill it where it takes too long."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _log(run: Run) -> Path:
    return run.folder.with_name(f"{run.folder.name}.log")
