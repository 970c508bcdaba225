"""A part that hangs is named in time; a run in which it hangs once goes on, else it fails with a sentence."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from ale_command import TINY
from support.forked_ale import ForkedAle

from ale.store.run_store import RunStore

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]
STALL_S = 3
LIMIT_S = 240
NAMES = {
    "exec": "a command in a sandbox",
    "engine": "the engine",
    "reward": "the reward",
    "hook": "the hook ale_step_finished of the observer 'print'",
    "store": "the store",
    "sync": "the store",
    "update": "the trainer (update)",
    "save": "the trainer (save)",
}


AGENT = """python3 - <<'END'
import json, os, urllib.request
body = {"model": "policy", "messages": [{"role": "user", "content": os.environ["ALE_TASK"]}]}
headers = {"authorization": "Bearer " + os.environ["ALE_API_KEY"], "content-type": "application/json"}
url = os.environ["ALE_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
END"""
"""An agent that asks over HTTP: the engine is called in a task of the server's, not in the rollout's."""


def run(folder: Path, part: str, how: str, *more: str) -> subprocess.CompletedProcess[str]:
    file = folder / "run.yaml"
    file.write_text(TINY.format(runs=folder / "runs"))
    settings = [f"rl.stall_s={STALL_S}", "rl.steps=3", "eval.every=0", "eval.episodes=1", "observers=[print]"]
    arguments = [part, how, "run", file, *settings, *more, "--out", folder / "run"]
    return ForkedAle(arguments, folder, "hang").wait(LIMIT_S)


@pytest.mark.parametrize("part", ["exec", "engine", "reward", "store", "sync", "update", "save"])
def test_a_part_that_hangs_for_ever_is_named_and_ends_the_run(part: str, tmp_path: Path) -> None:
    done = run(tmp_path, part, "always", *(["rl.checkpoint_every=1"] if part in ("save", "sync") else []))
    assert done.returncode == 1, done.stderr
    assert f"error: Nothing has moved for {STALL_S} s: {NAMES[part]} hangs." in done.stderr
    with RunStore.open(tmp_path / "run") as store:
        stalls = [data for _, kind, data in store.events() if kind == "stalled"]
        assert store.count() > 0, "what was stored is there"
    if NAMES[part] != "the store":
        assert [data["part"] for data in stalls] == [NAMES[part]] * 2
        assert stalls[0]["stacks"]
        assert "trainer" in stalls[0]


def test_an_observer_that_hangs_for_ever_is_interrupted_until_it_is_called_no_more(tmp_path: Path) -> None:
    done = run(tmp_path, "hook", "always", "rl.steps=5")
    assert done.returncode == 0, done.stderr
    assert "the observer 'print' failed in ale_step_finished" in done.stderr
    assert "Only its veto hooks are called from now on." in done.stderr
    with RunStore.open(tmp_path / "run") as store:
        assert [data["part"] for _, kind, data in store.events() if kind == "stalled"] == [NAMES["hook"]] * 3


def test_an_engine_that_agents_call_over_http_is_named_and_their_rollouts_are_made_again(tmp_path: Path) -> None:
    scaffold = f"scaffold={json.dumps({'use': 'cli', 'command': AGENT})}"
    done = run(tmp_path, "engine", "once", scaffold, "needs.network=endpoint-only")
    assert done.returncode == 0, done.stderr
    with RunStore.open(tmp_path / "run") as store:
        assert [data["part"] for _, kind, data in store.events() if kind == "stalled"] == [NAMES["engine"]]
        (ended,) = store.trajectories("failure IS NOT NULL AND stage = 'rl'")
    assert ended.failure is not None
    assert f"Nothing has moved for {STALL_S} s: the engine hangs." in ended.failure.message


@pytest.mark.parametrize("part", ["exec", "engine", "reward", "hook"])
def test_a_run_in_which_a_part_hangs_once_goes_on(part: str, tmp_path: Path) -> None:
    done = run(tmp_path, part, "once")
    assert done.returncode == 0, done.stderr
    with RunStore.open(tmp_path / "run") as store:
        assert [data["part"] for _, kind, data in store.events() if kind == "stalled"] == [NAMES[part]]
        assert [step for step, _ in store.metrics("rl")["success"]] == [1, 2, 3]
        ended = list(store.trajectories("failure IS NOT NULL"))
    if part != "hook":
        (t,) = ended
        assert t.failure is not None
        assert f"Nothing has moved for {STALL_S} s: {NAMES[part]} hangs." in t.failure.message
