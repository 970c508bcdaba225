"""What `ale doctor` says about the servers of engines: which are installed, and whether their Python starts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

from ale.cli.doctor import Finding
from ale_engines.server.python_environments import CPU, VERSIONS, Environment, has_gpu, installed_environments

START_S = 20


def check() -> Iterator[Finding]:
    """Yield each server that ALE knows."""
    installed = installed_environments()
    option = "" if has_gpu() else f" --{CPU}"
    for server, version in VERSIONS.items():
        found = [environment for environment in installed if environment.server == server]
        for environment in found:
            yield _check_environment(environment, f"ale engine install {server}{option}")
        if not any(environment.pinned for environment in found):
            mend = f"ale engine install {server}{option}, for runs with engine: {server}"
            yield Finding(server, "missing", f"version {version}, which this ALE uses, is not installed", mend)


def _check_environment(environment: Environment, install: str) -> Finding:
    used = "" if environment.pinned else ", of another release of ALE"
    try:
        done = subprocess.run(
            [environment.python, "-I", "-c", "import sys; print(sys.version.split()[0])"],
            capture_output=True,
            text=True,
            timeout=START_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        mend = f"ale engine remove {environment.name}; {install}"
        return Finding(environment.name, "broken", f"its Python does not start: {error}", mend)
    return Finding(environment.name, "ok", f"Python {done.stdout.strip()}, {environment.folder}{used}")
