"""The endpoint's Unix socket in a whole run, and the programs that reach it, through the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ale_command import SCRIPTED, ale
from strangers import write_package

from ale.endpoint.relays import SCRIPTS, script

FINISH = json.dumps('<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call>')
CALLER = """
import os, socket
from ale.specs.events import Observer, hookimpl

class Caller(Observer):
    api_version = ">=1.1,<1.3"
    @hookimpl
    def ale_sandbox_started(self, sandbox_id, episode_id, task):
        # No answer is waited for: what would give it is this very thread.
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(os.environ["SOCKET"])
        print("REACHED")
"""


@pytest.mark.bwrap
def test_a_run_serves_at_the_socket_that_its_file_names_and_takes_it_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "endpoint.sock"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SOCKET", str(path))
    write_package(tmp_path, "far-caller", CALLER, kind="hooks", name="caller", target="far_caller:Caller")
    text = SCRIPTED.format(runs=tmp_path / "runs", finish=FINISH).replace("steps: 2", "steps: 1")
    (tmp_path / "run.yaml").write_text(f"{text}endpoint: {{unix: {path}}}\nobservers: [caller]\n")
    done = ale("run", tmp_path / "run.yaml", "--only", "rollout", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "REACHED" in done.stdout + done.stderr
    assert not path.exists()


def test_a_socket_that_cannot_be_had_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    text = SCRIPTED.format(runs=tmp_path / "runs", finish=FINISH)
    (tmp_path / "run.yaml").write_text(f"{text}endpoint: {{unix: {tmp_path}/none/endpoint.sock}}\n")
    done = ale("run", tmp_path / "run.yaml", "--only", "rollout", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "The folder of the Unix socket" in done.stderr


@pytest.mark.parametrize("name", list(SCRIPTS))
def test_the_relays_are_printed(name: str) -> None:
    done = ale("endpoint", "relay", name)
    assert (done.returncode, done.stdout) == (0, script(name))


def test_a_relay_that_there_is_not_is_a_mistake() -> None:
    done = ale("endpoint", "relay", "perl")
    assert done.returncode == 2
    assert done.stderr == "error: There is no relay 'perl'; there are python, shell, node, log, files.\n"
