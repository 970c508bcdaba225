"""Ctrl-C and SIGTERM at any moment leave no process, group or folder behind, and a run folder that can be read."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ale_command import TINY, ale
from support.forked_ale import ForkedAle

from ale.errors import ConfigError
from ale.store.run_store import RunStore
from ale_sandbox.host.owned_folders import start_time

STATE = Path(tempfile.gettempdir()) / f"ale-local-{os.geteuid()}"


def start(folder: Path) -> ForkedAle:
    file = folder / "run.yaml"
    file.write_text(TINY.format(runs=folder / "runs"))
    arguments = ["run", file, "--out", folder / "run", "rl.steps=500", "sft.demonstrations.count=60"]
    return ForkedAle(arguments, folder)


def records(owner: int) -> list[dict[str, Any]]:
    """What the state folder holds of this owner's sandboxes."""
    found = []
    for record in STATE.glob("*.json") if STATE.is_dir() else ():
        try:
            data = json.loads(record.read_text())
        except (OSError, ValueError):
            continue
        if data.get("owner_pid") == owner:
            found.append(data)
    return found


def residents(owner: int) -> set[tuple[int, int]]:
    """The processes of this owner's sandboxes: pid and start time. Those of other tests do not count."""
    return {(r["pid"], r["start_time"]) for r in records(owner) if r["pid"]}


def alive(processes: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those that still run."""
    return {(pid, started) for pid, started in processes if start_time(pid) == started}


def wait_for_trajectories(run: Path, stage: str, number: int) -> None:
    """Wait until the run has stored so many trajectories of a stage; it exists from the first on."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (run / "run.db").exists():
            with suppress(ConfigError), RunStore.open(run) as store:  # the run may be opening it, too
                if store.count(f"stage = '{stage}'") >= number:
                    return
        time.sleep(0.05)
    raise AssertionError(f"{number} trajectories of the stage {stage} were not stored within 120 s")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("stage", "stored"), [("demonstrations", 0), ("demonstrations", 40), ("rl", 4)])
def test_a_signal_ends_a_run_cleanly(tmp_path: Path, number: signal.Signals, stage: str, stored: int) -> None:
    run = start(tmp_path)
    wait_for_trajectories(tmp_path / "run", stage, stored)
    mine = residents(run.pid)
    run.send_signal(number)
    done = run.wait(60)
    output = done.stdout + done.stderr
    assert done.returncode == 128 + number, output
    assert "Traceback" not in output
    assert f"interrupted by {number.name}" in output
    assert not alive(mine)
    assert not records(run.pid)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    with RunStore.open(tmp_path / "run") as store:
        assert store.count() == summary["rollouts"]
    assert ale("report", tmp_path / "run").returncode == 0


def test_kill_9_loses_no_finished_rollout_and_the_next_start_cleans_up(tmp_path: Path) -> None:
    run = start(tmp_path)
    wait_for_trajectories(tmp_path / "run", "demonstrations", 10)
    mine = residents(run.pid)
    assert mine
    os.kill(run.pid, signal.SIGKILL)
    run.wait(30)
    with RunStore.open(tmp_path / "run") as store:
        kept = list(store.trajectories())
    assert len(kept) >= 10
    deadline = time.monotonic() + 20
    mine |= residents(run.pid)
    while alive(mine) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(mine), "sandboxes die with their owner"
    assert ale("run", tmp_path / "run.yaml", "--out", tmp_path / "next", "rl=null", "sft.steps=1").returncode == 0
    assert not records(run.pid), "the next start reclaims what the killed one could not"
    assert ale("report", tmp_path / "run").returncode == 0
