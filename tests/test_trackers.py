"""These tests make whole runs with every tracker at once, without a network, and look at what each of them has."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ale_command import SCRIPTED, ale, ale_in_a_process, summary_of
from mlflow import MlflowClient

from ale.store.run_store import RunStore

RunFile = Callable[[str], Path]
TRACKERS = "observers=[print, tensorboard, {use: mlflow, mode: offline}, {use: wandb, mode: offline}]"


@pytest.fixture(autouse=True)
def quiet_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries tell nobody that they are used."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def tracked_run(folder: Path) -> Any:
    """The only run in a run folder's file of MLflow."""
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    experiment = client.get_experiment_by_name("ale")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    return run


def test_every_tracker_has_what_the_store_has(run_file: RunFile, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = ale("run", run_file(SCRIPTED), "--out", folder, "rl=null", "eval.episodes=4", TRACKERS)
    assert summary_of(done)["status"] == "completed"
    with RunStore.open(folder) as store:
        stored = {f"eval/{name}": points[0][1] for name, points in store.metrics("eval").items()}
    assert len([line for line in done.stderr.splitlines() if " eval 0: reward 0, success 0" in line]) == 1
    run = tracked_run(folder)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["eval/success"] == stored["eval/success"]
    assert len([name for name in run.data.metrics if name.startswith("eval/")]) == len(stored)
    assert (run.data.params["engine.use"], run.data.params["eval.episodes"]) == ("scripted", "4")
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    assert b"eval/success" in file.read_bytes()
    assert (folder / "tensorboard").is_dir()
    assert "failed" not in done.stderr


def test_a_run_that_fails_has_failed_in_its_trackers_and_no_process_is_left(run_file: RunFile, tmp_path: Path) -> None:
    before = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    folder = tmp_path / "run"
    done = ale("run", run_file(SCRIPTED), "--out", folder, "rl=null", "eval.split=none_such", TRACKERS)
    assert done.returncode != 0
    assert "none_such" in done.stderr
    run = tracked_run(folder)
    assert run.info.status == "FAILED"
    assert "none_such" in run.data.tags["error"]
    after = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert not {*after} - {*before}


def test_a_tracker_whose_server_is_not_there_does_not_end_the_run(
    run_file: RunFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    file = run_file(SCRIPTED)
    done = ale_in_a_process(
        "run", file, "--out", tmp_path / "run", "rl=null", "eval.episodes=2", "observers=[mlflow, wandb]"
    )
    assert summary_of(done)["status"] == "completed"
    warnings = [line for line in done.stderr.splitlines() if "warning: " in line]
    assert len(warnings) == 2
    assert "run `wandb login`, or set WANDB_API_KEY" in done.stderr
    assert "there is no tracking server at 127.0.0.1:9" in done.stderr
