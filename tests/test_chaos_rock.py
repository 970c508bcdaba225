"""A sample of faults of a ROCK service; `make chaos-rock` makes 100 of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.sandbox_providers import must_answer

CHAOS = Path(__file__).with_name("chaos") / "rock.py"
FAULTS = "worker killed,sandbox killed,network cut,admin killed"
SEED = "54"
"""With which the worker starts again at once, and its network is cut for longer than it may be silent."""

NETWORK = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--net", "sh", "-c"]
NETWORK += ["ip link add name bridge0 type bridge && ip link add name end0 type veth peer name end1"]


@pytest.mark.slow
@pytest.mark.bwrap
@pytest.mark.timeout(900)
def test_a_damaged_service_loses_nothing_leaks_nothing_and_gives_no_wrong_answer() -> None:
    must_answer("local")
    made = subprocess.run(NETWORK, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no networks can be made here: {made.stderr.strip()}")
    command = [sys.executable, str(CHAOS), "--runs", "4", "--seed", SEED, "--faults", FAULTS, "--databases", "sqlite"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all | 4 | 0 |" in done.stdout
