"""The same behaviour tests run over both modes; those that are about namespaces ask for bubblewrap."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ale.specs.driver import DriverContext
from ale.specs.sandbox import Resources, SandboxSpec
from ale_local import LocalSandbox, LocalSandboxConfig, LocalSandboxProvider
from ale_local.snapshot_store import SnapshotStore
from ale_sandbox.host.owned_folders import state_folder

as_root = pytest.mark.skipif(os.getuid() != 0, reason="overlays are for root")
SMALL = Resources(memory_mib=256, pids=64, disk_mib=16)
Content = tuple[str, int, int, bytes]


def provider_for(isolation: str) -> LocalSandboxProvider:
    """A provider, not started yet."""
    return LocalSandboxProvider(
        LocalSandboxConfig(isolation=isolation, defaults=SMALL), DriverContext(labels={"run": "r1"})
    )


def spec_of(provider: LocalSandboxProvider, **more: Any) -> SandboxSpec:
    """A spec under the strictest network policy that the provider can keep."""
    return SandboxSpec(network="full" if provider.wrap is None else "none", **more)


def contents(root: Path) -> dict[bytes, Content]:
    """All that is in a tree: kind, mode, time, content."""
    found: dict[bytes, Content] = {}

    def look(path: bytes, name: bytes) -> None:
        seen = os.lstat(path)
        kind, mode = stat.filemode(seen.st_mode)[0], stat.S_IMODE(seen.st_mode)
        if kind == "l":
            found[name] = (kind, 0, seen.st_mtime_ns, os.readlink(path))
        elif kind == "d":
            found[name] = (kind, mode, seen.st_mtime_ns, b"")
            for base in os.listdir(path):
                look(path + b"/" + base, name + b"/" + base)
        else:
            found[name] = (kind, mode, seen.st_mtime_ns, Path(os.fsdecode(path)).read_bytes())

    look(os.fsencode(root), b"")
    return found


def layers() -> SnapshotStore:
    """The snapshots of this test."""
    return SnapshotStore(state_folder("local"))


@pytest.fixture
def as_user(tmp_path: Path) -> Callable[[str], list[str]]:
    """Runs a program of this folder as a user without any privilege, its state in `tmp_path`; the lines that it
    prints."""
    if os.getuid() != 0:
        pytest.skip("becoming another user takes root")

    def run(program: str) -> list[str]:
        command = ["unshare", "--user", "--map-user=1234", "--map-group=1234", sys.executable]
        path = os.pathsep.join(entry for entry in sys.path if entry)
        done = subprocess.run(
            [*command, str(Path(__file__).with_name(program)), str(tmp_path)],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()

    return run


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State folders of their own, so that tests see only what they started themselves."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture(params=["none", pytest.param("bubblewrap", marks=pytest.mark.bwrap)])
async def provider(request: pytest.FixtureRequest) -> AsyncIterator[LocalSandboxProvider]:
    """A provider of each isolation."""
    if request.param == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    async with provider_for(request.param) as started:
        yield started


@pytest.fixture
async def sandbox(provider: LocalSandboxProvider) -> AsyncIterator[LocalSandbox]:
    """A small sandbox of each isolation."""
    async with await provider.start_sandbox(spec_of(provider)) as started:
        yield started


@pytest.fixture
async def wrapped() -> AsyncIterator[LocalSandboxProvider]:
    """A provider with bubblewrap."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    async with provider_for("bubblewrap") as started:
        yield started


@pytest.fixture
async def box(wrapped: LocalSandboxProvider) -> AsyncIterator[LocalSandbox]:
    """A small sandbox of namespaces."""
    async with await wrapped.start_sandbox(SandboxSpec()) as started:
        yield started
