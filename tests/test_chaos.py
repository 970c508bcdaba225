"""A sample of runs that are killed with `kill -9` and resumed; `make chaos` makes 200 of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).with_name("chaos") / "chaos.py"


@pytest.mark.slow
@pytest.mark.bwrap
@pytest.mark.timeout(900)
def test_killed_runs_lose_nothing_and_do_nothing_twice() -> None:
    command = [sys.executable, str(CHAOS), "--runs", "6", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all | | 6 | 0 |" in done.stdout
