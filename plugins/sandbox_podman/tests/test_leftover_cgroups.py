"""Control groups that a container's runtime has left are removed, once nobody is in them."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ale_podman.checkpoint import CGROUPS
from ale_podman.leftover_cgroups import remove_groups

BASE = next((path for path in (CGROUPS / "pids", CGROUPS) if (path / "cgroup.procs").exists()), CGROUPS)
pytestmark = pytest.mark.podman


@pytest.fixture
def left() -> Iterator[Path]:
    """A group as a container's is named, with one below it."""
    path = BASE / "libpod_parent" / f"libpod-{secrets.token_hex(32)}"
    (path / "below").mkdir(parents=True)
    yield path
    for folder in (path / "below", path):
        with suppress(OSError):
            folder.rmdir()


def remove(left: Path, seconds: float = 60.0) -> None:
    asyncio.run(remove_groups(left.name.removeprefix("libpod-"), seconds))


def test_they_are_removed_with_those_below_them(left: Path) -> None:
    remove(left)
    assert not left.exists()


def test_one_with_a_process_goes_when_the_process_has_gone(left: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        (left / "below" / "cgroup.procs").write_text(str(process.pid))
        remove(left, seconds=0.1)
        assert left.exists(), "nobody is thrown out of a group"
        threading.Timer(0.2, process.kill).start()
        threading.Thread(target=process.wait).start()
        remove(left)
    assert not left.exists()
