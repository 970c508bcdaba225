"""The fixture that the end-to-end tests share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from ale_command import FINISH


@pytest.fixture
def run_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a run file whose runs go into the test's own folder."""

    def write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text.format(runs=tmp_path / "runs", finish=json.dumps(FINISH)))
        return path

    return write
