"""In a whole run, an agent in a sandbox without any network makes rollouts, and the policy is trained on them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ale_command import REPOSITORY, TINY, ale, summary_of

from ale.store.run_store import RunStore

pytestmark = pytest.mark.bwrap
LOOK = "cat /proc/net/dev >&2; "
"""Shows which network interfaces there are."""


def run_file(folder: Path, **scaffold: object) -> Path:
    """A run with a warm start and one RL step, whose agent is a program in the sandbox."""
    agent = (REPOSITORY / "tests" / "conformance" / "small_agent.py").read_text()
    run = yaml.safe_load(TINY.format(runs=folder / "runs"))
    run["scaffold"] = {"use": "cli", "command": f"{LOOK}python3 agent.py", "files": {"agent.py": agent}, **scaffold}
    run["needs"] = {"network": "none"}
    run["sft"]["demonstrations"]["count"] = 4
    run["rl"] = {"steps": 1, "prompts_per_step": 2}
    run["eval"] = {"episodes": 2, "every": 0}
    run["rollout"].update(max_calls=2, max_context=900)
    run["model"]["scratch"]["max_length"] = 1024
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(run))
    return path


def test_it_asks_through_files_and_trains(tmp_path: Path) -> None:
    done = ale("run", run_file(tmp_path), "--out", tmp_path / "run")
    summary = summary_of(done)
    assert summary["failures"] == {}, done.stderr
    assert summary["final_policy_version"] > 0
    with RunStore.open(tmp_path / "run") as store:
        rollouts = list(store.trajectories("stage = 'rl'"))
        losses = store.metrics("rl")["loss"]
    assert len(losses) == 1
    assert len(rollouts) == 4
    for trajectory in rollouts:
        assert all(chunk.sampled for chunk in trajectory.chunks)
        assert all(chunk.versions for chunk in trajectory.chunks)
        (observed,) = trajectory.observations
        interfaces = {line.split(":")[0].strip() for line in observed.text.splitlines() if ":" in line[:12]}
        assert interfaces == {"lo"}, observed.text


def test_an_agent_that_speaks_another_api_is_refused_with_a_sentence(tmp_path: Path) -> None:
    done = ale("run", run_file(tmp_path, dialect="anthropic"), "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "needs.network: without a network an agent asks the model through files" in done.stderr
