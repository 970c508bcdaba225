"""These tests make whole runs, through the command line, with an agent that the run file defines: a recipe puts the
command-line agent into local sandboxes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ale_command import REPOSITORY, ale
from support.sandbox_providers import provider_of

from ale.store.run_store import RunStore

pytestmark = pytest.mark.bwrap

AGENT = (REPOSITORY / "tests" / "conformance" / "small_agent.py").read_text()
POLICY = """
from agent_policy import TASK, call

def answer(asked):
    command = "echo {} > {}".format(*TASK.findall(asked.prompt)[-1])
    return call("shell", command=command) if asked.call == 0 else "It is done."
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Iterator[Path]:
    """A run of four episodes; the snapshot of its agent goes with the test."""
    name = f"small-{secrets.token_hex(4)}"
    (tmp_path / "policy.py").write_text(POLICY)
    (tmp_path / "agent.py").write_text(AGENT)
    place = f"/opt/ale-agents/{name}/agent.py"
    run = {
        "tasks": {"use": "bash", "families": ["write"]},
        "scaffold": {
            "use": "cli",
            "command": f'python3 {place} "$ALE_TASK"',
            "recipe": {
                "name": name,
                "script": f"mkdir -p $ALE_AGENT; cat > {place} <<'END'\n{AGENT}END",
                "check": f"test -e {place}",
            },
        },
        "engine": {"use": "scripted", "function": f"{tmp_path / 'policy.py'}:answer"},
        "trainer": None,
        "needs": {"network": "endpoint-only"},
        "algorithm": {"use": "ipa", "group_size": 2},
        "rollout": {"concurrency": 2, "max_tokens": 400, "max_context": 8192},
        "rl": {"steps": 1, "prompts_per_step": 2},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(run))
    yield path

    async def remove() -> None:
        provider = provider_of("local")
        for snapshot in await provider.snapshots():
            if name in snapshot:
                await provider.remove_snapshot(snapshot)

    import asyncio

    asyncio.run(remove())


def test_it_is_put_there_once_and_solves_its_tasks(run_file: Path, tmp_path: Path) -> None:
    for number, told in enumerate(("agent_baked", "agent_found")):
        out = tmp_path / f"run{number}"
        done = ale("run", run_file, "--only", "rollout", "--out", out)
        assert done.returncode == 0, done.stdout + done.stderr
        with RunStore.open(out) as store:
            made = list(store.trajectories())
            kinds = [kind for _, kind, _ in store.events() if kind.startswith("agent_")]
        assert kinds == [told]
        assert [(t.ended_by, t.reward and t.reward.value) for t in made] == [("finish", 1.0)] * 4, done.stdout
        assert all(dict(t.timings)["prepare"] >= 0 for t in made)
        assert all(len(t.sequences) == 1 for t in made)


def test_agents_are_put_there_ahead_of_a_run(run_file: Path, tmp_path: Path) -> None:
    for _ in range(2):
        done = ale("sandbox", "bake", run_file)
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        agent, image, snapshot = line.split("\t")
        assert image == "-"
        assert snapshot.startswith(f"agent-{agent}-")
    done = ale("run", run_file, "--only", "rollout", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    with RunStore.open(tmp_path / "run") as store:
        assert [kind for _, kind, _ in store.events() if kind.startswith("agent_")] == ["agent_found"]


def test_a_run_without_such_an_agent_has_nothing_to_put_anywhere(run_file: Path) -> None:
    done = ale("sandbox", "bake", run_file, "scaffold=iflow")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "No agent of this run has to be installed into an image.\n"


def test_an_agent_that_is_not_there_fails_its_episodes_with_what_the_shell_said(run_file: Path, tmp_path: Path) -> None:
    bad = "scaffold={use: cli, command: no-such-agent --yes}"
    done = ale("run", run_file, bad, "--only", "rollout", "--out", tmp_path / "run")
    with RunStore.open(tmp_path / "run") as store:
        made = list(store.trajectories())
    assert made, done.stderr
    for t in made:
        assert t.failure is not None
        assert t.failure.kind == "agent"
        assert "never asked the model" in t.failure.message
        assert "no-such-agent" in t.failure.message


def test_a_lost_engine_is_a_failure_however_its_agent_ends(run_file: Path, tmp_path: Path) -> None:
    (tmp_path / "lost.py").write_text("def answer(asked):\n    raise OSError('the engine is lost')\n")
    lost = f"engine={{use: scripted, function: '{tmp_path / 'lost.py'}:answer'}}"
    done = ale("run", run_file, lost, "rollout.max_resamples=0", "--only", "rollout", "--out", tmp_path / "run")
    assert "Traceback" not in done.stderr
    with RunStore.open(tmp_path / "run") as store:
        made = list(store.trajectories())
    assert len(made) == 4
    for t in made:
        assert t.reward is None, "a fault is no zero"
        assert t.failure is not None
        assert (t.failure.kind, t.failure.retryable) == ("engine", True)
        assert "the engine is lost" in t.failure.message


REFUSED = """python3 -c 'import json, os, urllib.request as u
picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
for content in (os.environ["ALE_TASK"], picture):
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    headers = {"authorization": "Bearer " + os.environ["ALE_API_KEY"]}
    u.urlopen(u.Request(os.environ["ALE_BASE_URL"] + "/chat/completions", body, headers)).read()'"""


def test_an_episode_that_a_refused_picture_ended_is_a_failure_and_no_zero(run_file: Path, tmp_path: Path) -> None:
    for pictures, ended in (("refuse", "failure"), ("leave_out", "finish")):
        scaffold = {"use": "cli", "command": REFUSED, "pictures": pictures}
        (tmp_path / "policy.py").write_text("def answer(asked):\n    return 'plum'\n")
        run = {**yaml.safe_load(run_file.read_text()), "scaffold": scaffold}
        run_file.write_text(yaml.safe_dump(run))
        done = ale("run", run_file, "rollout.max_resamples=0", "--only", "rollout", "--out", tmp_path / pictures)
        with RunStore.open(tmp_path / pictures) as store:
            made = list(store.trajectories())
        assert [t.ended_by for t in made] == [ended] * 4, done.stderr
        if pictures == "leave_out":
            assert [(t.failure, t.passed) for t in made] == [(None, False)] * 4
            continue
        for t in made:
            assert t.reward is None
            assert t.failure is not None
            assert (t.failure.kind, t.failure.retryable) == ("agent", False)
            assert "only text is supported" in t.failure.message


def test_a_spent_budget_ends_an_episode_and_what_is_there_is_scored(run_file: Path, tmp_path: Path) -> None:
    done = ale("run", run_file, "rollout.max_calls=1", "--only", "rollout", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    with RunStore.open(tmp_path / "run") as store:
        made = list(store.trajectories())
    assert [(t.ended_by, t.passed, len(t.chunks)) for t in made] == [("budget", True, 1)] * 4
