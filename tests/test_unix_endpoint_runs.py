"""These tests use the endpoint's Unix socket, and the programs that reach it, in whole runs by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from ale_command import REPOSITORY, SCRIPTED, ale
from support.fake_packages import Install

from ale_endpoint.relays import SCRIPTS, script

FINISH = json.dumps('<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call>')
CALLER = """
import os, socket
from ale.specs.events import Observer, hookimpl

class Caller(Observer):
    api_version = ">=1.0,<1.2"
    @hookimpl
    def ale_sandbox_started(self, sandbox_id, episode_id, task):
        # No answer is waited for: what would give it is this very thread.
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(os.environ["SOCKET"])
        print("REACHED")
"""


def run_text(folder: Path, socket: Path) -> str:
    """A run of one step whose agent is a program, and whose scaffold serves at a Unix socket too."""
    agent = (REPOSITORY / "tests" / "conformance" / "small_agent.py").read_text()
    scaffold = {"use": "cli", "command": "python3 agent.py", "files": {"agent.py": agent}, "unix": str(socket)}
    text = SCRIPTED.format(runs=folder / "runs", finish=FINISH).replace("steps: 2", "steps: 1")
    more = {"scaffold": scaffold, "needs": {"network": "endpoint-only"}, "rollout": {"max_context": 8192}}
    return text + yaml.safe_dump(more)


@pytest.mark.bwrap
def test_a_run_serves_at_the_socket_that_its_file_names_and_takes_it_away(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "endpoint.sock"
    monkeypatch.setenv("SOCKET", str(path))
    install("far-caller", CALLER, kind="hooks", name="caller", target="far_caller:Caller")
    (tmp_path / "run.yaml").write_text(f"{run_text(tmp_path, path)}observers: [caller]\n")
    done = ale("run", tmp_path / "run.yaml", "--only", "rollout", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "REACHED" in done.stdout + done.stderr
    assert not path.exists()


def test_a_socket_that_cannot_be_had_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(run_text(tmp_path, tmp_path / "none" / "endpoint.sock"))
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
