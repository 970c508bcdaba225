"""These tests make whole runs with every tracker at once, without a network, and look at what each of them has."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ale_command import SCRIPTED, ale, forked_ale, summary_of
from mlflow import MlflowClient
from prometheus_client.parser import text_string_to_metric_families
from support.fake_packages import Install

from ale.store.run_store import RunStore

RunFile = Callable[[str], Path]
TRACKERS = "observers=[print, tensorboard, {use: mlflow, mode: offline}, {use: wandb, mode: offline}]"
SCRAPER = """
from http.client import HTTPConnection
from ale.specs.driver import PluginConfig
from ale.specs.events import Observer, hookimpl
from pydantic import Field

class Scraper(Observer):
    api_version = ">=1.0,<1.2"
    class Config(PluginConfig):
        port: int = Field(description="Port to read.")
        path: str = Field(description="File to write to.")

    @hookimpl
    def ale_step_finished(self):
        connection = HTTPConnection("127.0.0.1", self.config.port, timeout=20)
        connection.request("GET", "/metrics")
        with open(self.config.path, "wb") as file:
            file.write(connection.getresponse().read())
"""


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
    done = forked_ale("run", file, "--out", tmp_path / "run", "rl=null", "eval.episodes=2", "observers=[mlflow, wandb]")
    assert summary_of(done)["status"] == "completed"
    warnings = [line for line in done.stderr.splitlines() if "warning: " in line]
    assert len(warnings) == 2
    assert "run `wandb login`, or set WANDB_API_KEY" in done.stderr
    assert "there is no tracking server at 127.0.0.1:9" in done.stderr


@pytest.fixture
def free_port() -> int:
    """A port at which nobody listens: none of those that the system gives to whoever asks for any."""
    first = 20_000 + os.getpid() % 10_000
    for port in range(first, first + 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"there is no free port from {first} on")


def test_prometheus_reads_a_run_while_it_lasts_and_also_once_it_is_resumed(
    run_file: RunFile, tmp_path: Path, install: Install, free_port: int
) -> None:
    install("far-scraper", SCRAPER, kind="hooks", name="scraper", target="far_scraper:Scraper")
    folder, scrape = tmp_path / "run", tmp_path / "scrape"
    scraper = f"{{use: scraper, port: {free_port}, path: {scrape}}}"  # it is called after those that follow it
    observers = f"observers=[{scraper}, {{use: prometheus, port: {free_port}}}]"
    failed = ale(
        "run", run_file(SCRIPTED), "--out", folder, "rl=null", "eval.episodes=4", "eval.split=none_such", observers
    )
    assert "none_such" in failed.stderr
    done = ale("run", "--resume", folder, "eval.split=heldout")
    run_id = summary_of(done)["run_id"]
    for each in (failed, done):
        assert f"Prometheus finds the metrics at http://127.0.0.1:{free_port}/metrics." in each.stderr
    with RunStore.open(folder) as store:
        stored = {name: points[0][1] for name, points in store.metrics("eval").items()}
    found = {family.name: family for family in text_string_to_metric_families(scrape.read_text())}
    (success,) = found["ale_success"].samples
    assert (success.labels, success.value) == ({"run": run_id, "stage": "eval"}, stored["success"])
    assert len([name for name in found if name.startswith("ale_")]) == len(stored) + 1, "all metrics, and the step"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", free_port))


def test_a_port_that_is_taken_refuses_a_run_before_it_begins(run_file: RunFile, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        observers = f"observers=[{{use: prometheus, port: {listener.getsockname()[1]}}}]"
        done = ale("run", run_file(SCRIPTED), "--out", tmp_path / "run", "rl=null", "eval.episodes=2", observers)
    assert done.returncode == 2
    assert "The observer 'prometheus' cannot listen at 127.0.0.1, port" in done.stderr
    assert not (tmp_path / "run").exists()
