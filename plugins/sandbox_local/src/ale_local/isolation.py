"""Finds the isolation that works on this machine: bubblewrap with several users, with one user, or none."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ale_local import bubblewrap
from ale_local.config import LocalSandboxConfig
from ale_local.launcher import Launcher


def find_isolation(
    base: Path, python: str, config: LocalSandboxConfig
) -> tuple[tuple[bubblewrap.Bubblewrap, Launcher] | None, str]:
    """Set up bubblewrap, with several users if possible, and its launcher; or return why it does not work."""
    if not python:
        return None, "the sandbox would have no Python; set sandbox.host_python to true"
    sources = bubblewrap.Bubblewrap.sources(base, config.host_python)
    namespaces = bubblewrap.make_namespaces(sources, config.uid_base)
    fault = "it failed"
    for candidate in dict.fromkeys((namespaces, None)):
        wrap = bubblewrap.Bubblewrap(base, python, config.host_python, candidate, config.folders)
        launcher = Launcher(candidate)
        try:
            found = launcher.run(partial(bubblewrap.probe, wrap))
        except OSError as error:
            found = str(error)
        if found is None:
            return (wrap, launcher), ""
        fault = found
        launcher.close()
        if candidate is not None:
            candidate.close()
    return None, fault
