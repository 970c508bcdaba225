"""In a whole run, weights reach an engine that can load only folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ale_command import TINY, forked_ale, summary_of
from support.fake_packages import write_package

from ale.store.run_store import RunStore

FOLDERS_ONLY = """
import json
from ale.specs.engine import FolderTicket
from ale_engine_torch import TorchEngine

class FolderEngine(TorchEngine):
    transports = ("folder",)

    async def load_weights(self, policy):
        assert isinstance(policy.ticket, FolderTicket)
        there = sorted(path.name for path in policy.ticket.folder.parent.iterdir())
        await super().load_weights(policy)
        with (self.context.run_dir / "loads.jsonl").open("a") as file:
            print(json.dumps([policy.version, policy.ticket.folder.name, there]), file=file)
"""


def test_an_engine_that_loads_folders_alone_is_trained_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(
        tmp_path, "far-folders", FOLDERS_ONLY, kind="engine", name="folders", target="far_folders:FolderEngine"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    file, run = tmp_path / "run.yaml", tmp_path / "run"
    file.write_text(TINY.format(runs=tmp_path / "runs"))
    summary = summary_of(forked_ale("run", file, "engine.use=folders", "eval.every=0", "--out", run))
    assert (summary["status"], summary["final_policy_version"]) == ("completed", 3)
    with RunStore.open(run) as store:
        assert {t.policy_version for t in store.trajectories("stage = 'rl'")} == {1, 2}
    loads = [json.loads(line) for line in (run / "loads.jsonl").read_text().splitlines()]
    assert loads == [[1, "1", ["1"]], [2, "2", ["1", "2"]], [3, "3", ["2", "3"]]], (
        "a version goes when a newer is loaded"
    )
    assert [path.name for path in (run / "weights").iterdir()] == ["3"], "the newest stays, for a restart"
    newest, final = (run / folder / "model.safetensors" for folder in ("weights/3", "model/final"))
    assert newest.read_bytes() == final.read_bytes()


def test_weights_in_memory_leave_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(TINY.format(runs=tmp_path / "runs"))
    summary = summary_of(forked_ale("run", file, "rl=null", "eval.every=0", "--out", tmp_path / "run"))
    assert summary["final_policy_version"] == 1
    assert not (tmp_path / "run" / "weights").exists()
