"""Ctrl-C and SIGTERM at any moment leave no process, group or folder behind, and a run folder that can be read."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from ale_command import ALE, TINY, ale

from ale.store import RunStore

STATE = Path(tempfile.gettempdir()) / f"ale-local-{os.geteuid()}"


def start(folder: Path) -> subprocess.Popen[str]:
    file = folder / "run.yaml"
    file.write_text(TINY.format(runs=folder / "runs"))
    command = [str(ALE), "run", str(file), "--out", str(folder / "run"), "rl.steps=500", "sft.demonstrations.count=60"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def residents() -> set[int]:
    """Processes of sandboxes on this machine, whoever owns them."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"ale_local" in command or b"resident" in command:
                found.add(int(entry.name))
    return found


def leftovers(owner: int) -> list[str]:
    """Records of sandboxes that this owner has left in the state folder."""
    names = []
    for record in STATE.glob("*.json") if STATE.is_dir() else ():
        try:
            data = json.loads(record.read_text())
        except (OSError, ValueError):
            continue
        if owner in (data.get("owner"), data.get("owner_pid")):
            names.append(record.name)
    return names


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", range(3))
def test_a_signal_ends_a_run_cleanly(tmp_path: Path, number: signal.Signals, moment: int) -> None:
    before = residents()
    run = start(tmp_path)
    database = tmp_path / "run" / "run.db"
    deadline = time.monotonic() + 120
    while not database.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    # From the first sandbox to the middle of reinforcement learning.
    time.sleep(random.Random(moment).uniform(0, 0.5) + 5.0 * moment)
    run.send_signal(number)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 128 + number, output
    assert "Traceback" not in output
    assert f"interrupted by {number.name}" in output
    assert not residents() - before
    assert not leftovers(run.pid)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    with RunStore.open(tmp_path / "run") as store:
        assert store.count() == summary["rollouts"]
    assert ale("report", tmp_path / "run").returncode == 0


def test_kill_9_loses_no_finished_rollout_and_the_next_start_cleans_up(tmp_path: Path) -> None:
    before = residents()
    run = start(tmp_path)
    database = tmp_path / "run" / "run.db"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if database.exists():
            with RunStore.open(tmp_path / "run") as store:
                if store.count() >= 10:
                    break
        time.sleep(0.1)
    os.kill(run.pid, signal.SIGKILL)
    run.wait(timeout=30)
    with RunStore.open(tmp_path / "run") as store:
        kept = list(store.trajectories())
    assert len(kept) >= 10
    deadline = time.monotonic() + 20
    while residents() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not residents() - before, "sandboxes die with their owner"
    assert ale("run", tmp_path / "run.yaml", "--out", tmp_path / "next", "rl=null", "sft.steps=1").returncode == 0
    assert not leftovers(run.pid), "the next start reclaims what the killed one could not"
    assert ale("report", tmp_path / "run").returncode == 0
