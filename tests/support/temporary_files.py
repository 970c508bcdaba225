"""A folder for temporary files of a test's own, in which nothing may be left."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

COMPILED = "TORCHINDUCTOR_CACHE_DIR"


@contextmanager
def nothing_left_in(folder: Path) -> Iterator[None]:
    """Let this process and those that it starts write their temporary files into a new folder; what is left there at
    the end is an `AssertionError`. What torch compiles stays where it is, for the tests to come."""
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        if COMPILED not in os.environ:
            patch.setenv(COMPILED, f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}")
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield
    left = sorted(path.name for path in folder.iterdir())
    assert not left, f"left in the folder for temporary files: {', '.join(left)}"
