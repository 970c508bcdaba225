"""The library itself logs, into files and to a server on loopback; what it wrote is read back with its client."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from pydantic import ValidationError

from ale.errors import ConfigError
from ale.registry.hooks import Hooks
from ale.specs.driver import DriverContext
from ale_mlflow import MlflowTracker, tracker
from ale_mlflow.names import allowed_name
from ale_mlflow.tracker import MlflowConfig
from ale_train.workbench.channel import RunChannel

SECRET = "hunter2-hunter2"
RUN = {"name": "spam", "rl": {"steps": 2, "more": {}}, "note": f"the key is {SECRET}", "sft": None, "list": [1, "ö"]}


@pytest.fixture(autouse=True)
def no_server_is_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings of the machine's, and time for what a busy one takes; afterwards no thread of the tracker's is
    left."""
    monkeypatch.setattr(tracker, "CLOSE_S", 300)
    monkeypatch.setattr(tracker, "REACH_S", 60)
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    yield
    assert "ale-mlflow" not in {thread.name for thread in threading.enumerate()}


async def play(
    folder: Path, *steps: tuple[str, int, dict[str, float]], ends: dict[str, Any] | None, **settings: Any
) -> None:
    """Play a run with the tracker; `ends` is the summary, None for a run that was killed."""
    channel = RunChannel(lambda text: text.replace(SECRET, "${oc.env:KEY}"))
    tracker = MlflowTracker(MlflowConfig.model_validate(settings), DriverContext("r-7", folder, channel=channel))
    async with tracker:
        hooks = Hooks([("mlflow", tracker)])
        hooks.call("ale_run_started", run_id="r-7", run_dir=folder, config=RUN)
        for stage, step, metrics in steps:
            hooks.call("ale_step_finished", stage=stage, step=step, metrics=metrics)
        if ends is not None:
            hooks.call("ale_run_finished", run_id="r-7", summary=ends)


def stored_runs(folder: Path, project: str = "ale") -> tuple[MlflowClient, list[Any]]:
    """The client for a folder's file, and the runs of a project in it, the oldest first."""
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}", f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(project)
    assert experiment is not None
    return client, client.search_runs([experiment.experiment_id], order_by=["start_time ASC"])


async def test_metrics_configuration_and_summary_are_in_the_run_folders_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps = [
        ("eval", -1, {"success": 0.25, "pass@2": 0.5, "pass^2": 0.125, "success/größe (a)": 1.0, "gap": math.nan}),
        ("rl", 1, {"success": 0.5, "huge": math.inf} | {f"many/{i}": i / 8 for i in range(1100)}),
        ("rl", 2, {"success": 0.75}),
    ]
    ends = {"status": "completed", "error": None, "heldout": {"after_rl": {"success": 0.75}}, "failures": {}}
    await play(tmp_path, *steps, ends=ends, project="spam", group="g", tags={"team": "a"})
    client, (run,) = stored_runs(tmp_path, "spam")
    assert (run.info.run_name, run.info.status) == ("r-7", "FINISHED")
    assert {"team": "a", "group": "g", "status": "completed"}.items() <= run.data.tags.items()
    history = client.get_metric_history(run.info.run_id, "rl/success")
    assert [(point.step, point.value) for point in history] == [(1, 0.5), (2, 0.75)]
    (before,) = client.get_metric_history(run.info.run_id, "eval/success")
    assert (before.step, before.value) == (-1, 0.25)
    metrics = run.data.metrics
    assert (metrics["eval/pass_at_2"], metrics["eval/pass_all_2"]) == (0.5, 0.125)
    assert metrics["eval/success/gr__e _a_"] == 1.0
    assert metrics["rl/many/1099"] == 1099 / 8
    assert metrics["summary/heldout/after_rl/success"] == 0.75
    assert not {"eval/gap", "rl/huge"} & metrics.keys()
    assert run.data.params == {
        "name": "spam",
        "rl.steps": "2",
        "rl.more": "{}",
        "note": "the key is ${oc.env:KEY}",
        "sft": "null",
        "list": '[1, "ö"]',
    }
    assert SECRET.encode() not in (tmp_path / "mlflow.db").read_bytes()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        (None, "FAILED"),
        ({"status": "failed", "error": f"The engine \ud800 died of {SECRET}."}, "FAILED"),
        ({"status": "interrupted", "error": "The run was interrupted."}, "KILLED"),
    ],
)
async def test_a_run_that_did_not_complete_says_so(tmp_path: Path, ends: dict[str, Any] | None, status: str) -> None:
    await play(tmp_path, ("rl", 1, {"success": 0.5}), ends=ends)
    _, (run,) = stored_runs(tmp_path)
    assert (run.info.status, run.data.metrics["rl/success"]) == (status, 0.5)
    assert run.data.tags.get("error", "").startswith("The ") == (ends is not None)
    assert SECRET not in run.data.tags.get("error", "")


async def test_a_run_that_goes_on_is_one_run_whose_steps_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await play(tmp_path, ("rl", 1, {"success": 0.5}), ends={"status": "interrupted", "error": "Stopped."})
    monkeypatch.setitem(RUN, "rl", {"steps": 4, "more": {}, "new": True})
    await play(tmp_path, ("rl", 2, {"success": 0.75}), ends={"status": "completed"})
    client, (run,) = stored_runs(tmp_path)
    assert (run.info.status, run.data.tags["status"]) == ("FINISHED", "completed")
    assert "error" not in run.data.tags, "that was of the first part"
    assert (run.data.params["rl.steps"], run.data.params["rl.new"]) == ("2", "true")
    history = client.get_metric_history(run.info.run_id, "rl/success")
    assert [(point.step, point.value) for point in history] == [(1, 0.5), (2, 0.75)]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_run_that_is_not_there_any_more_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "mlflow_run_id").write_text("0123456789abcdef0123456789abcdef\n")
    await play(tmp_path, ("rl", 2, {"success": 0.75}), ends={"status": "completed"})
    _, (run,) = stored_runs(tmp_path)
    assert run.data.metrics["rl/success"] == 0.75
    assert (tmp_path / "mlflow_run_id").read_text().strip() == run.info.run_id


async def test_runs_share_a_folder_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for name in ("one", "two"):
        settings = {"mode": "offline", "dir": tmp_path / "all of them", "name": name}
        await play(tmp_path / name, ("rl", 1, {"success": 0.5}), ends={"status": "completed"}, **settings)
        assert os.listdir(tmp_path / name) == ["mlflow_run_id"]
    _, runs = stored_runs(tmp_path / "all of them")
    assert [run.info.run_name for run in runs] == ["one", "two"]


@contextmanager
def tracking_server(
    status: int = 200, *, holds: threading.Event | None = None, refuses: str = ""
) -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """A server that answers every call with a new experiment and run (once `holds` is set); its address, and the
    calls."""
    calls: list[tuple[str, dict[str, Any]]] = []
    answer = {"experiment_id": "1", "run": {"info": {"run_id": "r1", "run_uuid": "r1"}, "data": {}}}

    class Answers(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_GET(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
            name = self.path.rpartition("/mlflow/")[2].partition("?")[0]
            calls.append((name, body))
            if holds is not None:
                holds.wait()
            good = status == 200 and name != refuses
            data = json.dumps(answer if good else {"error_code": "UNAUTHENTICATED", "message": "no"}).encode()
            self.send_response(200 if good else 401)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", calls
        finally:
            server.shutdown()
            thread.join()


async def test_a_server_gets_what_a_file_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tracking_server() as (uri, calls):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        await play(tmp_path, ("rl", 1, {"success": 0.5}), ends={"status": "completed"})
    names = [name for name, _ in calls]
    assert names[:3] == ["experiments/create", "runs/create", "runs/log-batch"]
    assert names[-1] == "runs/update"
    assert calls[-1][1]["status"] == "FINISHED"
    sent = [(m["key"], m["value"], m["step"]) for _, body in calls for m in body.get("metrics", ())]
    assert ("rl/success", 0.5, 1) in sent
    assert os.listdir(tmp_path) == ["mlflow_run_id"]


async def test_a_server_that_is_not_there_does_not_stop_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can meanwhile
        port = taken.getsockname()[1]
        await play(
            tmp_path, ("rl", 1, {"success": 0.5}), ends={"status": "completed"}, uri=f"http://me:pw@127.0.0.1:{port}"
        )
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "ale.mlflow"]
    assert f"there is no tracking server at 127.0.0.1:{port} (ConnectionError)" in warning
    assert "set its mode to offline; run.db has all numbers." in warning


async def test_a_server_that_wants_a_login_is_asked_once_and_the_warning_says_how(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tracking_server(401) as (uri, calls):
        await play(tmp_path, ("rl", 1, {"success": 0.5}), ends={"status": "completed"}, uri=uri)
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "ale.mlflow"]
    assert "MLFLOW_TRACKING_TOKEN" in warning
    assert not [name for name, _ in calls if name.startswith("runs/")]


async def test_what_a_server_refuses_is_lost_and_the_run_still_ends_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tracking_server(refuses="runs/log-batch") as (uri, calls):
        steps = [("rl", step, {"success": 0.5}) for step in range(9)]
        await play(tmp_path, *steps, ends={"status": "completed"}, uri=uri)
    names = [name for name, _ in calls]
    assert names.count("runs/log-batch") == 3, "it gives up after three failures"
    assert calls[-1][1]["status"] == "FINISHED"
    assert caplog.text.count("mlflow could not log a part of this run") == 3


async def test_a_slow_server_holds_up_neither_the_steps_nor_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "CLOSE_S", 0.2)
    answers = threading.Event()
    with tracking_server(holds=answers) as (uri, calls):
        try:
            await play(tmp_path, ("rl", 1, {"success": 0.5}), ends={"status": "completed"}, uri=uri)
            assert len(calls) <= 1, "the run has ended, and the server has not answered its first call"
            assert "mlflow did not take all of this run" in caplog.text
        finally:
            answers.set()
        for thread in [thread for thread in threading.enumerate() if thread.name == "ale-mlflow"]:
            thread.join()
    assert calls[-1][0] == "runs/update", "what was left is sent where the process lives on"


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("a/../b", "a/_/b"),
        ("//", "_/_/_"),
        ("x" * 300, "x" * 250),
        ("success/sandbox:local.0", "success/sandbox:local.0"),
    ],
)
def test_a_name_that_mlflow_refuses_becomes_one_that_it_takes(name: str, allowed: str) -> None:
    assert allowed_name(name) == allowed


def test_a_wrong_mode_is_refused() -> None:
    with pytest.raises(ValidationError, match="'online' or 'offline'"):
        MlflowConfig.model_validate({"mode": "of line"})


def test_a_folder_that_cannot_be_made_refuses_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    tracker = MlflowTracker(MlflowConfig(dir=tmp_path / "file/new"), DriverContext())
    with pytest.raises(ConfigError, match=r"The folder of the observer .mlflow. .*new cannot be made: "):
        asyncio.run(tracker.start())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
