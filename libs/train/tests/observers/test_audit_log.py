"""The audit log by itself: whole lines, appended, and no command without its line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ale.errors import ConfigError
from ale.registry.hooks import Hooks
from ale.specs.driver import DriverContext
from ale.specs.sandbox import ExecResult
from ale.task import Task, TaskTests
from ale_train.observers.audit_log import AuditLog, AuditLogConfig

TASK = Task(id="t-1", instruction="Do it.", tests=TaskTests(command="true"))
IDS = {"sandbox_id": "s", "episode_id": "e", "task": TASK}


def open_log(path: Path, **settings: object) -> tuple[AuditLog, Hooks]:
    log = AuditLog(AuditLogConfig(path=path, **settings), DriverContext(run_id="r"))  # type: ignore[arg-type]
    return log, Hooks([("audit_log", log)])


async def test_a_second_run_appends_and_changes_nothing_before_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "audit.jsonl"
    for expected in (1, 2):
        log, hooks = open_log(path)
        async with log:
            hooks.call("ale_run_started", run_id="r", run_dir=tmp_path, config={"seed": 1})
        assert len(path.read_text().splitlines()) == expected
    assert oct(path.stat().st_mode)[-3:] == "600"


async def test_a_command_that_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    log, hooks = open_log(tmp_path / "audit.jsonl")
    async with log:
        assert hooks.veto_reason("ale_before_exec", **IDS, command="ls", stdin=b"") is None
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, log._open())
        os.close(full)
        for _ in range(5):
            refusal = hooks.veto_reason("ale_before_exec", **IDS, command="rm -rf /", stdin=b"")
            assert "No space left on device" in (refusal or "")


async def test_a_path_that_cannot_be_written_is_a_sentence_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log, _ = open_log(tmp_path / "file" / "audit.jsonl")
    with pytest.raises(ConfigError, match=r"The folder of the audit log .*file cannot be made: Not a directory\."):
        await log.start()
    with pytest.raises(ConfigError, match="give it a 'path'"):
        _ = AuditLog(AuditLogConfig(), DriverContext()).path


async def test_what_no_text_can_hold_is_kept_readable_and_long_output_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log, hooks = open_log(path, max_output_chars=5)
    async with log:
        hooks.call("ale_exec_started", **IDS, by="agent", command="a\nb\ud800", stdin=b"\xff\x00")
        result = ExecResult(0, b"0123456789", b"\xff", 0.25)
        hooks.call("ale_exec_finished", **IDS, by="agent", command="x" * 9999, result=result, error=None)
    started, finished = map(json.loads, path.read_text().splitlines())
    assert started["command"] == "a\nb\ud800"
    assert started["stdin"] == "\\xff\x00"
    assert finished["stdout"] == "01234... (5 characters left out)"
    assert finished["stderr"] == "\ufffd"
    assert len(finished["command"]) == 9999
