"""The image that containers are attacked from: a Python, pytest, and both compiled, so that an attack begins at
once."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from ale.specs.sandbox import SandboxSpec

PYTHON_IMAGE = "ale-python:1"
PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
WARM_UP = """
set -e
python3 -c 'import contextlib, ctypes, errno, fcntl, glob, mmap, platform, re, resource, shutil, signal, socket, struct'
python3 -c 'import subprocess, threading'
cd /tmp
echo 'def test(): assert 1' > test_it.py
python3 -m pytest -q test_it.py
rm -rf /tmp/* /tmp/.p*
"""
"""Root of a container leaves what it compiled where agents find it."""


async def make_image(provider: Any) -> str:
    """Make it with a provider whose agent is root; its name."""
    if not await runs(provider):
        await provider.build_image(python=True)
    image = f"ale-attacked:{os.getpid()}"
    async with await provider.start_sandbox(SandboxSpec(image=PYTHON_IMAGE)) as box:
        await box.upload(pytest_files())
        done = await box.exec(WARM_UP, timeout_s=60)
        assert done.exit_code == 0, done.output
        await provider.engine.commit(box.id, image)
    return image


async def runs(provider: Any) -> bool:
    """Whether there is an image with a Python, and not one that another version of this framework has left."""
    if not await provider.engine.find_image(PYTHON_IMAGE):
        return False
    async with await provider.start_sandbox(SandboxSpec(image=PYTHON_IMAGE)) as box:
        done = await box.exec("python3 -c 'import ctypes, sys; print(\"%d.%d\" % sys.version_info[:2])'")
        access = await box.exec("stat -c %a /usr/local/bin/python3 $(readlink -f /usr/local/bin/python3)")
        return done.stdout.decode().strip() == VERSION and b"644" not in access.stdout


def pytest_files() -> dict[str, bytes]:
    """The pytest of this process, as it stands in the image."""
    where, files = f"/usr/local/lib/python{VERSION}/site-packages", {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        origin = Path(str(spec.origin))
        whole = origin.name == "__init__.py"
        for path in origin.parent.rglob("*.py") if whole else [origin]:
            files[f"{where}/{path.relative_to(origin.parent.parent if whole else origin.parent)}"] = path.read_bytes()
    return files
