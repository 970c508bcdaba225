"""Installs and removes servers' environments.

1. The work runs below a guard (`ServerProcess`): if this process is interrupted or killed, pip ends and the half-made
   folder vanishes.
2. A lock for each environment, which the kernel releases when its owner ends, lets a second installation wait for the
   first and use what that made.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from ale.errors import ConfigError, EngineError
from ale.store.output_files import make_folder
from ale_engines.installation.build_environment import BuildRequest
from ale_engines.server.process import ServerProcess
from ale_engines.server.python_environments import CPU, Environment, engines_folder, installed_environments

POLL_S = 0.2
DRAFT, REMOVED = "draft-", "removed-"
"""How the names of temporary folders begin, after a dot and the environment's name."""


async def install(environment: Environment, torch_index: str, show: Callable[[str], None]) -> bool:
    """Install an environment; return False if it was there. `show` gets lines for a person.

    `torch_index` is the URL of a package index with builds of torch, or empty. Raises `EngineError` if it cannot be
    made; nothing is left of it then but pip's log.
    """
    async with locked(environment, show):
        if environment.python.exists():
            return False
        remove_leftovers(environment)
        root = engines_folder()
        shutil.rmtree(environment.folder, ignore_errors=True)  # without a Python that runs: its base was removed
        draft = Path(tempfile.mkdtemp(prefix=f".{environment.name}.{DRAFT}", dir=root))
        temporary = draft / "temporary"  # pip leaves its temporary files if it is killed
        temporary.mkdir()
        log = root / f"{environment.name}.log"
        log.unlink(missing_ok=True)
        requirements = tuple(environment.requirements())
        show(f"Installing {len(requirements)} packages into {environment.folder}; {log} shows pip's progress.")
        request = BuildRequest(
            folder=str(environment.folder),
            draft=str(draft / "environment"),
            requirements=requirements,
            package=environment.package,
            version=environment.version,
            torch_index=torch_index,
        )
        variables = {**os.environ, "TMPDIR": str(temporary)}
        process = ServerProcess(request.command(), variables, log, "The installation", remove=[draft])
        try:
            await process.start()
            await process.wait_ended()
        finally:
            await process.close()
        if not environment.python.exists():
            raise EngineError(_failure(environment, process, log))
        log.unlink(missing_ok=True)
        return True


async def remove(name: str, show: Callable[[str], None]) -> None:
    """Remove an installed environment; a server that runs from it fails. Raises `ConfigError` if there is none."""
    found = {environment.name: environment for environment in installed_environments()}
    if name not in found:
        there = f"installed: {', '.join(found)}" if found else "none is installed"
        raise ConfigError(f"There is no environment '{name}' in {engines_folder()}; {there}.")
    environment = found[name]
    async with locked(environment, show):
        # Renamed first: half an environment is never found under its name.
        with contextlib.suppress(FileNotFoundError):
            aside = tempfile.mkdtemp(prefix=f".{name}.{REMOVED}", dir=engines_folder())
            environment.folder.rename(aside)
        await asyncio.to_thread(remove_leftovers, environment)


def remove_leftovers(environment: Environment) -> None:
    """Remove the temporary folders of installations and removals that ended in the middle."""
    for path in engines_folder().glob(f".{environment.name}.*-*"):
        shutil.rmtree(path, ignore_errors=True)


@contextlib.asynccontextmanager
async def locked(environment: Environment, show: Callable[[str], None]) -> AsyncIterator[None]:
    """Hold the environment's lock; wait for it as long as another process has it. Raises `ConfigError` if the folder
    cannot be written."""
    root = make_folder(engines_folder(), "folder of engines (below XDG_DATA_HOME)")
    with (root / f".{environment.name}.lock").open("w") as lock:
        waiting = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    show(f"Another process installs or removes {environment.name}; waiting for it.")
                waiting = True
                await asyncio.sleep(POLL_S)
        yield


def _failure(environment: Environment, process: ServerProcess, log: Path) -> str:
    # The first is pip's, or the builder's where pip had none.
    errors = [line for line in process.log_tail().splitlines() if line.startswith("ERROR: ")]
    reason = errors[0].removeprefix("ERROR: ").rstrip(".") if errors else f"it {process.ended}"
    advice = " Where pip's index has no CPU build of torch, name one that has: --torch-index URL."
    return (
        f"{environment.name} could not be installed: {reason}. Nothing is left of it but pip's log, {log}."
        f"{advice if environment.variant == CPU else ''}"
    )
