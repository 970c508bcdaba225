"""Environments of Python with packages from PyPI, made once and kept for later runs of the tests."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest

CACHE = Path.home() / ".cache" / "ale-tests"


def python_with(*packages: str) -> Path:
    """Return the Python of a venv that has these packages. Skips the test where they cannot be had."""
    key = hashlib.sha256(repr((sys.version, packages)).encode()).hexdigest()[:16]
    folder = CACHE / key
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="new-", dir=CACHE))
        try:
            install(made, packages)
            made.rename(folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    folder.chmod(0o755)  # users of sandboxes may use it, too
    return folder / "bin" / "python"


def install(folder: Path, packages: tuple[str, ...]) -> None:
    """Make a venv with these packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    done = subprocess.run([*pip, *packages], capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        pytest.skip(f"PyPI does not give {', '.join(packages)}: {last}")
