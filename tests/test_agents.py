"""These tests run real agents through the command line, in containers that can reach only the model endpoint."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ale_command import REPOSITORY, ale, summary_of
from support.sandbox_providers import answers

from ale.store.run_store import RunStore
from ale.trajectory import Trajectory

IMAGE = "ale-agents-base:1"
"""`.ci/agent-image` makes it."""
AGENTS = {
    "qwen-code": "{use: cli, agent: qwen-code}",
    "mini-swe-agent": "{use: sweagent}",
    "openhands": "{use: openhands}",
}
RUN = """
name: agents
run_dir: {runs}
tasks: {{use: bash, families: [write]}}
scaffold: {scaffold}
sandbox: {{use: docker, image: "{image}"}}
engine: {engine}
trainer: null
algorithm: {{use: ipa, group_size: 1}}
needs: {{network: endpoint-only}}
rollout: {{concurrency: {sandboxes}, max_calls: 4, max_tokens: 2000, max_context: 200000, timeout_s: 120}}
pool: {{max_sandboxes: {sandboxes}}}
rl: {{steps: 1, prompts_per_step: 2}}
"""
SOLVES = f"{{use: scripted, max_context: 200000, function: '{Path(__file__).with_name('agent_policy.py')}:answer'}}"
BABBLES = "{use: scripted, max_context: 200000, random: true, random_tokens: 200}"

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True, scope="module")
def image() -> None:
    if not answers("docker"):
        pytest.skip("the engine does not answer")
    found = subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, check=False)
    if found.returncode != 0:
        pytest.skip(f"there is no image {IMAGE}; .ci/agent-image makes it")


def rolled_out(
    tmp_path: Path, agent: str, engine: str, sandboxes: int, *overrides: str, name: str = "run"
) -> tuple[list[Trajectory], list[tuple[str, dict[str, Any]]], dict[str, Any]]:
    """Two episodes if no override says otherwise, in so many sandboxes: trajectories, events, summary."""
    path = tmp_path / "run.yaml"
    path.write_text(RUN.format(runs=tmp_path, scaffold=AGENTS[agent], image=IMAGE, engine=engine, sandboxes=sandboxes))
    done = ale("run", path, "--only", "rollout", "--out", tmp_path / name, *overrides)
    summary = summary_of(done)
    with RunStore.open(tmp_path / name) as store:
        return list(store.trajectories()), [(kind, data) for _, kind, data in store.events()], summary


@pytest.mark.parametrize("agent", AGENTS)
def test_a_real_agent_solves_tasks_and_only_it_starts_again_between_them(agent: str, tmp_path: Path) -> None:
    made, events, summary = rolled_out(tmp_path, agent, SOLVES, sandboxes=1)
    for t in made:
        assert t.failure is None, t.failure
        said = t.observations[-1].text
        assert (t.ended_by, t.reward and t.reward.value) == ("finish", 1.0), said
        assert len(t.sequences) == 1, "its second request goes on from the very tokens of the first"
        assert [chunk.error for chunk in t.chunks] == [None, None]
    assert len(made) == 2
    agents = [kind for kind, _ in events if kind.startswith("agent_")]
    assert agents in (["agent_baked"], ["agent_found"]), (
        "put into the image at most once, by this run or an earlier one"
    )
    pool = summary["sandboxes"]
    assert pool["pool/warm_hits"] == 1, "the sandbox serves one episode after the other"
    assert pool["pool/cold_starts"] == 1 + (agents == ["agent_baked"])
    assert pool["pool/resets_failed"] == 0
    goes_on_from_its_own_first_chunk(tmp_path, agent, made)


def goes_on_from_its_own_first_chunk(tmp_path: Path, agent: str, experts: list[Trajectory]) -> None:
    """The solved episodes as experts: the first chunk is replayed to the agent, the last one is the policy's."""
    where = f"algorithm.experts={{demonstrations: false, data: [{tmp_path / 'run'}]}}"
    one = ("algorithm.start=rollback", "rl.prompts_per_step=1")
    made, _, _ = rolled_out(tmp_path, agent, SOLVES, 1, where, *one, name="on")
    of_task = {t.task_id: t for t in experts}
    for t in made:
        assert t.failure is None, t.failure
        expert = of_task[t.task_id]
        assert (t.start_chunk, [chunk.sampled for chunk in t.chunks]) == (1, [False, True])
        first, its = t.chunks[0], expert.chunks[0]
        replayed = t.sequences[0].token_ids[first.start : first.end]
        assert replayed == expert.sequences[0].token_ids[its.start : its.end], "the expert's very tokens"
        assert t.reward is not None
        assert t.reward.value == 1.0, "what the agent did with them is what the tests found"
    assert len(made) == 1


@pytest.mark.parametrize("agent", AGENTS)
def test_a_policy_that_talks_nonsense_breaks_nothing(agent: str, tmp_path: Path) -> None:
    made, _, summary = rolled_out(tmp_path, agent, BABBLES, 1, "rl.prompts_per_step=1")
    assert len(made) == 1
    for t in made:
        assert t.failure is None, t.failure
        assert t.ended_by in ("finish", "agent_error", "budget"), json.dumps(t.observations[-1].text[-1000:])
        assert t.reward is not None
        assert t.reward.value == 0.0
        assert t.chunks
    assert not any(summary["failures"].values())


def test_a_tiny_policy_is_trained_with_a_real_agent_and_nothing_is_installed_after_the_first_episode(
    tmp_path: Path,
) -> None:
    small = [
        "sft.demonstrations.count=2",
        "sft.demonstrations.keep_failed=true",
        "sft.steps=2",
        "sft.batch_size=2",
        "rl.steps=1",
        "rl.prompts_per_step=1",
        "eval=null",
    ]
    done = ale("run", REPOSITORY / "examples" / "native_agent.yaml", "--out", tmp_path / "run", *small)
    summary = summary_of(done)
    with RunStore.open(tmp_path / "run") as store:
        made = list(store.trajectories())
        agents = [kind for _, kind, _ in store.events() if kind.startswith("agent_")]
    assert summary["status"] == "completed"
    assert len(made) == 2 + 2
    assert [t.failure for t in made] == [None] * len(made)
    assert len(agents) == 1, "looked for once in the whole run"
    bakes = [dict(t.timings)["prepare"] for t in sorted(made, key=lambda t: t.started_at)]
    assert max(bakes[2:]) < 0.5, "no episode after the first ones waits for an installation"
    pool = summary["sandboxes"]
    assert pool["pool/cold_starts"] == 2 + (agents == ["agent_baked"])
    assert pool["pool/warm_hits"] == len(made) - 2, "all others have a sandbox that was used before"
    assert pool["pool/resets_failed"] == 0
