"""Removes control groups that the runtime of a removed container has left behind.

The runtime tries for a moment to remove them, and gives up if the container's last process takes longer to end."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress

from ale_podman.checkpoint import CGROUPS

FORMS = (
    "libpod_parent/libpod-{}",
    "*/libpod_parent/libpod-{}",
    "machine.slice/libpod-{}.scope",
    "*/machine.slice/libpod-{}.scope",
)
"""The paths of containers' groups, for both ways in which Podman manages them and both versions of control groups."""


async def remove_groups(container: str, seconds: float = 5.0) -> None:
    """Remove the groups of a container by its id; groups that cannot be removed in time, or are not ours, stay."""
    until = time.monotonic() + seconds
    while left := [path for form in FORMS for path in CGROUPS.glob(form.format(container))]:
        for path in left:
            for folder, _, _ in os.walk(path, topdown=False):
                with suppress(OSError):  # a process still runs in it, another process removed it, or it is not ours
                    os.rmdir(folder)
        if time.monotonic() > until:
            return
        await asyncio.sleep(0.02)
