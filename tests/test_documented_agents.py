"""These tests run the agents whose whole run files stand in docs/agents.md, as they stand there, in containers."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from ale_command import REPOSITORY, ale, summary_of
from markdown_it import MarkdownIt
from support.sandbox_providers import answers

from ale.store.run_store import RunStore

IMAGE = "ale-agents-base:1"
"""`.ci/agent-image` makes it."""
PAGE = REPOSITORY / "docs" / "agents.md"
POLICY = Path(__file__).with_name("agent_policy.py")
REGISTRY = "https://registry.npmjs.org"
AGENTS = ("codex", "claude-code", "opencode")
SIDE_CALLS = {"codex": 0, "claude-code": 0, "opencode": 1}

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True, scope="module")
def machine() -> None:
    if not answers("docker"):
        pytest.skip("the engine does not answer")
    found = subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, check=False)
    if found.returncode != 0:
        pytest.skip(f"there is no image {IMAGE}; .ci/agent-image makes it")
    try:
        urllib.request.urlopen(REGISTRY, timeout=20).close()
    except (urllib.error.URLError, TimeoutError) as error:
        pytest.skip(f"{REGISTRY} serves no packages here: {error}")


def documented(agent: str) -> dict[str, Any]:
    """The run file of the page whose recipe is this agent's."""
    texts = [token.content for token in MarkdownIt().parse(PAGE.read_text()) if token.info.strip() == "yaml"]
    runs = [yaml.safe_load(text) for text in texts]
    (run,) = [run for run in runs if run["scaffold"].get("recipe", {}).get("name", "").startswith(f"{agent}-")]
    return dict(run)


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_of_the_documentation_solves_tasks(agent: str, tmp_path: Path) -> None:
    tested = {
        "run_dir": str(tmp_path),
        "tasks": {"use": "bash", "families": ["write"]},
        "engine": {"use": "scripted", "max_context": 200000, "function": f"{POLICY}:answer"},
        "trainer": None,
        "algorithm": {"use": "ipa", "group_size": 1},
        "rl": {"steps": 1, "prompts_per_step": 2},
    }
    run = documented(agent) | tested
    run["sandbox"]["image"] = IMAGE
    run["rollout"]["concurrency"] = 1
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    summary = summary_of(ale("run", tmp_path / "run.yaml", "--only", "rollout", "--out", tmp_path / "run"))
    with RunStore.open(tmp_path / "run") as store:
        made = list(store.trajectories())
    assert len(made) == 2
    for t in made:
        said = t.observations[-1].text
        assert t.failure is None, t.failure
        assert (t.ended_by, t.reward and t.reward.value) == ("finish", 1.0), said
        own = [chunk for chunk in t.chunks if not chunk.side]
        assert [chunk.error for chunk in own] == [None, None]
        assert len({chunk.sequence for chunk in own}) == 1, "its second request goes on from the tokens of the first"
        assert len(t.chunks) - len(own) == SIDE_CALLS[agent]
    assert not any(summary["failures"].values())
