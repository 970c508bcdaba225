"""The temporary folder of a Ray that a run has started: it has Ray's sockets, logs and spilled objects.

The run holds a lock of a file in it for as long as it lives. So the next run can tell, and removes, a folder whose run
was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

ROOT, PREFIX, OWNER = Path("/tmp"), "ale-ray-", ".owner"  # sockets need a short path
REMOVE_S = 5.0
"""How long processes of Ray may write after they were asked to end."""


class TemporaryFolder:
    """It exists from now on until `remove`."""

    def __init__(self) -> None:
        remove_abandoned()
        self.path = tempfile.mkdtemp(prefix=PREFIX, dir=ROOT)
        beside = os.path.join(self.path, f"{OWNER}.new")
        self._lock = os.open(beside, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(beside, os.path.join(self.path, OWNER))  # no other run can see it without the lock

    def remove(self) -> None:
        """Remove it with all that is in it. It may be called again."""
        until = time.monotonic() + REMOVE_S
        while os.path.exists(self.path):
            shutil.rmtree(self.path, ignore_errors=True)
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_abandoned() -> None:
    """Remove the folders of runs that were killed."""
    for file in ROOT.glob(f"{PREFIX}*/{OWNER}"):
        with contextlib.suppress(OSError):  # another user's, or just removed
            lock = os.open(file, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(file.parent, ignore_errors=True)
            finally:
                os.close(lock)
