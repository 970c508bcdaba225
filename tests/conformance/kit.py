"""Runs the conformance kit as an author of plugins does: `pytest --pyargs ale.testing`, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SPREAD = ("-n", "3", "--dist", "loadfile")
"""Options for all of a sandbox provider's suites, which wait for most of their time: three files of the kit at once.

A file's tests run one after another: those of snapshots look at all the snapshots that there are."""


def run_kit(
    where: Path, plugin: str, *options: str | Path, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The kit against one plugin; `path` is a folder with packages of strangers."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(path or "")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(where),
        "--pyargs",
        "ale.testing",
    ]
    return subprocess.run(
        [*command, "--ale-plugin", plugin, *map(str, options)], cwd=where, env=environment, capture_output=True,
        text=True, errors="replace", timeout=280, check=False,  # what it prints may be a file's name, which is bytes
    )  # fmt: skip
