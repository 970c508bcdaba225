"""A short text that an observer keeps in the run folder over the parts of a run, such as the id of a tracker's run."""

from __future__ import annotations

import fcntl
import os
from itertools import count
from pathlib import Path


class KeptText:
    """The file `name` of a folder, which is made if need be. While one observer of a run holds it, the next one gets
    `name.2`, and so on, so that a run that goes on finds the same files for the same observers."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            path = folder / (name if number == 1 else f"{name}.{number}")
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._descriptor)
            else:
                self.path = path
                return

    def read(self) -> str:
        """Return the text; it is empty if none was written yet."""
        return self.path.read_text(encoding="utf-8").strip()

    def write(self, text: str) -> None:
        """Keep a text in place of the one before."""
        self.path.write_text(f"{text}\n", encoding="utf-8")

    def close(self) -> None:
        """Let go of the file, which stays. Call it once."""
        os.close(self._descriptor)
