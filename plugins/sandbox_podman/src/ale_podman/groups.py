"""Control groups that a removed container's runtime has left.

The runtime tries for a moment to remove them, and leaves them to nobody where the container's last process takes longer to go.
"""

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
"""Where containers have theirs, by the two ways in which Podman manages them, in either version of control groups."""


async def remove_groups(container: str, seconds: float = 5.0) -> None:
    """Remove those of a container by its id; what cannot be removed in time, or is not ours, stays."""
    until = time.monotonic() + seconds
    while left := [path for form in FORMS for path in CGROUPS.glob(form.format(container))]:
        for path in left:
            for folder, _, _ in os.walk(path, topdown=False):
                with suppress(OSError):  # a process is still there, another one was faster, or it is not ours
                    os.rmdir(folder)
        if time.monotonic() > until:
            return
        await asyncio.sleep(0.02)
