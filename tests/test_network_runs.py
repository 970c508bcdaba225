"""These tests check network policies in whole runs, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from ale_command import REPOSITORY, SCRIPTED, ale
from support.fake_packages import Install

from ale.store.run_store import RunStore

pytestmark = pytest.mark.bwrap

REACH = '<tool_call>\n{"name": "shell", "arguments": {"command": "exec 3<>/dev/tcp/10.9.8.7/443"}}\n</tool_call>'
WATCHER = """
from ale.specs.events import Observer, hookimpl

class Watcher(Observer):
    api_version = ">=1.0,<1.2"
    @hookimpl
    def ale_network_refused(self, sandbox_id, labels, host, port, count):
        print("WATCHED", host, port, count, sorted(labels))
"""


def run_file(tmp_path: Path, network: str, answer: str) -> Path:
    """A run of one step under a policy, whose policy says one thing."""
    text = SCRIPTED.format(runs=tmp_path / "runs", finish=json.dumps(answer)).replace("steps: 2", "steps: 1")
    path = tmp_path / "run.yaml"
    path.write_text(text + network)
    return path


def test_what_an_agent_tries_to_reach_is_an_event_of_the_run_and_told_to_observers(
    tmp_path: Path, install: Install
) -> None:
    install("far-watcher", WATCHER, kind="hooks", name="watcher", target="far_watcher:Watcher")
    path = run_file(tmp_path, "needs: {network: allow, allow: ['pypi.org:443']}\nobservers: [watcher]\n", REACH)
    done = ale("run", path, "--only", "rollout", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    with RunStore.open(tmp_path / "run") as store:
        refused = [data for _, kind, data in store.events() if kind == "network_refused"]
        episodes = {t.id: t.task_id for t in store.trajectories()}
    assert refused, done.stdout
    for data in refused:
        assert (data["protocol"], data["host"], data["port"]) == ("tcp", "10.9.8.7", 443)
        assert episodes[data["labels"]["episode"]] == data["labels"]["task"]
        assert data["sandbox"].startswith("ale-")
    assert {data["labels"]["episode"] for data in refused} == set(episodes), "each of them tried"
    assert "WATCHED 10.9.8.7 443" in done.stdout + done.stderr


def test_agents_that_may_reach_the_endpoint_alone_reach_it(tmp_path: Path) -> None:
    ask = "exec 3<>/dev/tcp/127.0.0.1/8600; printf 'GET /v1/models HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3; python3 agent.py"
    agent = (REPOSITORY / "tests" / "conformance" / "small_agent.py").read_text()
    more = {
        "scaffold": {"use": "cli", "command": ["bash", "-c", ask], "files": {"agent.py": agent}},
        "needs": {"network": "endpoint-only"},
        "rollout": {"max_tokens": 400, "max_context": 4096},
    }
    path = run_file(tmp_path, yaml.safe_dump(more), "I am done.")
    done = ale("run", path, "--only", "rollout", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    with RunStore.open(tmp_path / "run") as store:
        seen = ["".join(o.text for o in t.observations) for t in store.trajectories()]
    assert seen
    assert all('"id":"policy"' in said.replace(" ", "") for said in seen), seen[0]


def test_a_policy_that_the_machine_cannot_keep_ends_the_run_before_it_starts(tmp_path: Path) -> None:
    path = run_file(tmp_path, "sandbox: {use: local, isolation: none}\n", REACH)
    done = ale("run", path, "--only", "rollout", "--out", tmp_path / "run")
    assert done.returncode != 0
    assert "needs.network=none needs a sandbox with 'network_none'" in done.stderr
    assert not (tmp_path / "run").exists()
