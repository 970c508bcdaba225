"""The library itself logs, without a network; what it wrote is read back from its file: records of protobuf in a log of
LevelDB's format, which `wandb sync` reads."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import wandb
from pydantic import ValidationError
from support.temporary_files import nothing_left_in
from wandb.proto.wandb_internal_pb2 import Record

from ale.errors import ConfigError
from ale.registry.hooks import Hooks
from ale.registry.installed import list_plugins
from ale.specs.driver import DriverContext
from ale_testing.import_check import check_import
from ale_train.workbench.channel import RunChannel
from ale_wandb import WandbConfig, WandbTracker

BLOCK, HEADER = 32_768, 7
"""Bytes of a block of the log; bytes before the data of each piece, and at the beginning of the file."""


@dataclass
class Logged:
    """What an offline run holds."""

    run: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    axes: dict[str, str] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None


def only_run(folder: Path) -> Path:
    """The file of the only run in a folder of wandb's."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return path


def read_logged(folder: Path) -> Logged:
    """What the only offline run in a folder holds."""
    logged = Logged()
    for record in records(only_run(folder).read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            logged.run = record.run
            logged.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "history":
            items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            logged.history.append({key: value for key, value in items.items() if not key.startswith("_")})
        elif kind == "metric":
            logged.axes[record.metric.glob_name or record.metric.name] = record.metric.step_metric
        elif kind == "summary":
            items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.summary.update}
            logged.summary |= items
        elif kind == "exit":
            logged.exit_code = record.exit.exit_code
    return logged


def records(data: bytes) -> Iterator[Any]:
    """The records of the file, put together from their pieces."""
    at, whole = HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:  # the rest of a block is padding
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # the whole record, or its last piece
            yield Record.FromString(whole)
            whole = b""


SECRET = "hunter2-hunter2"
RUN_OF_ITS_OWN = """
import asyncio, sys
from pathlib import Path
from ale.specs.driver import DriverContext
from ale_wandb import WandbConfig, WandbTracker

async def main():
    folder = Path(sys.argv[1])
    async with WandbTracker(WandbConfig(mode="offline"), DriverContext("r-7", folder)) as tracker:
        tracker.ale_run_started("r-7", folder, {})

asyncio.run(main())
"""
RUN = {"name": "spam", "rl": {"steps": 2}, "note": f"the key is {SECRET}"}


@pytest.fixture(autouse=True)
def nobody_is_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No key, no settings of the machine's; afterwards no process of the library's is left."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    before = children()
    yield
    wandb.teardown()
    assert children() <= before


def children() -> set[str]:
    """The processes that this one has started."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


async def play(
    folder: Path, *steps: tuple[str, int, dict[str, float]], ends: dict[str, Any] | None, **settings: Any
) -> list[str]:
    """Play a run with the tracker, and return the notes that it showed; `ends` is the summary, None for a kill."""
    notes: list[str] = []
    channel = RunChannel(lambda text: text.replace(SECRET, "${oc.env:KEY}"), show=notes.append)
    tracker = WandbTracker(WandbConfig.model_validate(settings), DriverContext("r-7", folder, channel=channel))
    async with tracker:
        hooks = Hooks([("wandb", tracker)])
        hooks.call("ale_run_started", run_id="r-7", run_dir=folder, config=RUN)
        for stage, step, metrics in steps:
            hooks.call("ale_step_finished", stage=stage, step=step, metrics=metrics)
        if ends is not None:
            hooks.call("ale_run_finished", run_id="r-7", summary=ends)
    return notes


async def test_metrics_configuration_and_summary_are_in_the_offline_file(tmp_path: Path) -> None:
    steps = [
        ("eval", -1, {"success": 0.25, "success/a b": 1.0, "gap": math.nan}),
        ("sft", 0, {"loss": 2.0}),
        ("eval", 0, {"success": 0.5}),
        ("rl", 1, {"success": 0.75, "huge": math.inf}),
    ]
    settings = {"project": "team/spam", "group": "g", "tags": ["one", "two"]}
    ends = {"status": "completed", "error": None, "heldout": {"after_rl": {"success": 0.75}}}
    await play(tmp_path, *steps, ends=ends, mode="offline", **settings)
    logged = read_logged(tmp_path)
    assert (logged.run.entity, logged.run.project, logged.run.run_group) == ("team", "spam", "g")
    assert (logged.run.display_name, list(logged.run.tags)) == ("r-7", ["one", "two"])
    assert {key: logged.config[key] for key in ("name", "rl")} == {"name": "spam", "rl": {"steps": 2}}
    assert logged.history == [
        {"eval/step": -1, "eval/success": 0.25, "eval/success/a b": 1.0},
        {"sft/step": 0, "sft/loss": 2.0},
        {"eval/step": 0, "eval/success": 0.5},
        {"rl/step": 1, "rl/success": 0.75},
    ]
    assert {"eval/*": "eval/step", "rl/*": "rl/step"}.items() <= logged.axes.items()
    assert logged.summary["status"] == "completed"
    assert logged.exit_code == 0
    assert SECRET.encode() not in only_run(tmp_path).read_bytes()
    assert b"${oc.env:KEY}" in only_run(tmp_path).read_bytes()


@pytest.mark.parametrize("ends", [None, {"status": "failed", "error": "The engine died."}])
async def test_a_run_that_did_not_complete_has_failed(tmp_path: Path, ends: dict[str, Any] | None) -> None:
    await play(tmp_path, ("rl", 1, {"success": 0.5}), ends=ends, mode="offline")
    logged = read_logged(tmp_path)
    assert logged.exit_code == 1
    assert logged.history == [{"rl/step": 1, "rl/success": 0.5}]
    assert logged.summary.get("error") == (ends or {}).get("error")


async def test_without_a_login_the_data_go_to_files_and_a_warning_says_how_to_mend_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True, "readline": pytest.fail})())
    with caplog.at_level(logging.WARNING, "ale"):
        await play(tmp_path, ("rl", 1, {"success": 0.5}), ends={"status": "completed"})
    (warning,) = caplog.messages
    assert "there is no API key: run `wandb login`, or set WANDB_API_KEY" in warning
    assert f"`wandb sync {only_run(tmp_path).parent}`" in warning
    assert read_logged(tmp_path).history == [{"rl/step": 1, "rl/success": 0.5}]


@pytest.mark.slow
async def test_a_server_that_cannot_be_reached_does_not_stop_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    with socket.socket() as taken, caplog.at_level(logging.WARNING, "ale"):
        taken.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can meanwhile
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("WANDB_BASE_URL", nobody)
        await play(tmp_path, ("rl", 1, {"success": 0.5}), ends={"status": "completed"}, mode="online")
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "ale.wandb"]
    assert f"it cannot log in or reach its server (Failed to authenticate with {nobody}" in warning
    assert "wandb sync" in warning
    assert "a" * 40 not in warning
    assert read_logged(tmp_path).history == [{"rl/step": 1, "rl/success": 0.5}]


async def test_the_librarys_own_variable_sets_the_mode_and_a_folder_of_ones_own_takes_the_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    await play(tmp_path / "run", ends={"status": "completed"}, dir=tmp_path / "mine" / "deep", name="eggs")
    assert read_logged(tmp_path / "mine" / "deep").run.display_name == "eggs"
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["wandb_run_id"]
    assert not [record for record in caplog.records if record.name.startswith("ale")]


async def test_a_run_that_goes_on_is_one_run_whose_steps_go_on(tmp_path: Path) -> None:
    first, second, fork = tmp_path / "first", tmp_path / "second", tmp_path / "fork"
    run = tmp_path / "run"
    await play(run, ("rl", 1, {"success": 0.5}), ends={"status": "interrupted"}, mode="offline", dir=first)
    await play(run, ("rl", 2, {"success": 0.75}), ends={"status": "completed"}, mode="offline", dir=second)
    await play(fork, ends={"status": "completed"}, mode="offline", dir=fork)
    logged = [read_logged(folder) for folder in (first, second, fork)]
    ids = [one.run.run_id for one in logged]
    assert ids[0] == ids[1] != ids[2], "another folder is another run"
    assert [one.history for one in logged[:2]] == [
        [{"rl/step": 1, "rl/success": 0.5}],
        [{"rl/step": 2, "rl/success": 0.75}],
    ]
    assert (run / "wandb_run_id").read_text() == f"{ids[0]}\n"


async def test_two_trackers_of_one_run_each_go_on_with_their_own(tmp_path: Path) -> None:
    ids = []
    for part in ("first", "second"):
        configs = [WandbConfig(mode="offline", dir=tmp_path / part / name) for name in "ab"]
        trackers = [WandbTracker(config, DriverContext("r-7", tmp_path / "run")) for config in configs]
        for tracker in trackers:
            tracker.ale_run_started("r-7", tmp_path / "run", {})
        for tracker in trackers:
            await tracker.close()
        ids.append([read_logged(tmp_path / part / name).run.run_id for name in "ab"])
    assert ids[0] == ids[1]
    assert ids[0][0] != ids[0][1]


async def test_the_server_is_asked_for_the_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb_run_id").write_text("abc123\n")
    asked: list[dict[str, Any]] = []
    begin = wandb.init

    def offline(**arguments: Any) -> Any:
        asked.append(arguments)
        return begin(**arguments | {"mode": "offline", "resume": None})

    monkeypatch.setattr(wandb, "login", lambda **_: True)
    monkeypatch.setattr(wandb, "init", offline)
    await play(tmp_path, ends=None, mode="online")
    assert [(one["mode"], one["id"], one["resume"]) for one in asked] == [("online", "abc123", "allow")]


async def test_two_runs_of_one_process_do_not_end_each_other(tmp_path: Path) -> None:
    trackers = [WandbTracker(WandbConfig(mode="offline"), DriverContext(name, tmp_path / name)) for name in "ab"]
    for tracker in trackers:
        tracker.ale_run_started(tracker.context.run_id, tmp_path / tracker.context.run_id, {})
    await trackers[0].close()
    trackers[1].ale_step_finished("rl", 1, {"success": 0.5})
    await trackers[1].close()
    await trackers[1].close()
    assert [read_logged(tmp_path / name).history for name in "ab"] == [[], [{"rl/step": 1, "rl/success": 0.5}]]


def test_neither_a_run_nor_a_check_of_the_plugin_leaves_temporary_files(tmp_path: Path) -> None:
    """The library makes two folders for them when it is imported."""
    (plugin,) = [found for found in list_plugins("hooks") if found.name == "wandb"]
    with nothing_left_in(tmp_path / "temporary"):
        subprocess.run([sys.executable, "-c", RUN_OF_ITS_OWN, str(tmp_path / "run")], check=True)
        assert asyncio.run(check_import(plugin)).problem is None
    assert read_logged(tmp_path / "run").exit_code == 1


def test_a_wrong_mode_is_refused() -> None:
    with pytest.raises(ValidationError, match="'online', 'offline' or 'disabled'"):
        WandbConfig.model_validate({"mode": "of line"})


def test_a_folder_that_cannot_be_made_refuses_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    tracker = WandbTracker(WandbConfig(dir=tmp_path / "file/new"), DriverContext())
    with pytest.raises(ConfigError, match=r"The folder of the observer .wandb. .*new cannot be made: "):
        asyncio.run(tracker.start())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
