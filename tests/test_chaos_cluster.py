"""A sample of runs on two Ray nodes whose parts are damaged; `make chaos-cluster` makes 100 of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).with_name("chaos") / "cluster.py"
FAULTS = "slow node,actor paused,disk full,raylet killed,sandbox killed,run's process killed"
"""All but those of `test_cluster.py`, and the slowest: what is paused for good is given up after half a minute or more.
Each run gets two of them, the first of which is done at once: while the others take their time, a run may come to its
end."""


@pytest.mark.slow
@pytest.mark.bwrap
@pytest.mark.timeout(900)
def test_damaged_runs_lose_nothing_do_nothing_twice_and_leave_nothing() -> None:
    command = [sys.executable, str(CHAOS), "--runs", "2", "--in-each", "2", "--seed", "1", "--faults", FAULTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all | 2 | 0 |" in done.stdout
