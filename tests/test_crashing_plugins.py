"""Plugins by other authors may crash or return nonsense during a run. These tests check that the error is a sentence,
and that the run continues if it can."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.fake_packages import write_package
from support.forked_command import program

from ale.messages import whole_characters
from ale.store.run_store import RunStore

RUN = """
name: crash
tasks: {{use: {tasks}}}
sandbox: {{use: local, isolation: none}}
needs: {{network: full}}
scaffold: {scaffold}
reward: {reward}
engine: {{use: scripted, answers: {answers}}}
trainer: null
eval: {{episodes: 2}}
rollout: {{max_resamples: 0}}
"""
REWARD = "from ale_tests import TestsReward\nclass Fixed(TestsReward):\n    async def score(self, *what): "
SCAFFOLD = "from ale_iflow import IFlow\nclass Fixed(IFlow):\n    async def run(self, *what): "
TASKS = "from ale_bash import BashTasks\nclass Fixed(BashTasks):\n    def tasks(self, split): "

CRASHES = {
    "a reward that raises": ("reward", REWARD + "return {}['x']", "The reward plugin crashed: KeyError: 'x'."),
    "a reward that gives a number": (
        "reward",
        REWARD + "return 0.5",
        "The reward plugin must answer with an ale.trajectory.Score, not 0.5.",
    ),
    "a scaffold that says nothing": (
        "scaffold",
        SCAFFOLD + "return None",
        "run() must return why the agent ended, in a word, not None.",
    ),
    "a source that raises": (
        "tasks",
        TASKS + "raise OSError('disk')",
        "tasks: the task source 'fixed' crashed in its split 'heldout': OSError: disk.",
    ),
    "a source of dictionaries": (
        "tasks",
        TASKS + "return [{}]",
        "tasks: the task source 'fixed' must yield ale.task.Task objects, not dict.",
    ),
}


def run_with(folder: Path, kind: str, answers: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    """`ale run` with the stranger's plugin of one kind, and ours of the others."""
    chosen = {"tasks": "bash", "scaffold": "iflow", "reward": "tests", **({kind: "fixed"} if kind else {})}
    (folder / "run.yaml").write_text(RUN.format(**chosen, answers=json.dumps(answers)))
    return subprocess.run(
        [program(), "run", folder / "run.yaml", "--out", folder / "out", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )


@pytest.mark.parametrize("what", CRASHES, ids=lambda what: what.replace(" ", "-"))
def test_a_plugin_that_crashes_is_a_sentence(what: str, tmp_path: Path) -> None:
    kind, source, sentence = CRASHES[what]
    write_package(tmp_path, "far-away", source, kind=kind)
    done = run_with(tmp_path, kind, ["Done."])
    assert done.returncode in (1, 2)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "failed"


BLOCKING = (
    "from ale_tests import TestsReward\nclass Fixed(TestsReward):\n    def score(self, task, sandbox, trajectory): "
)
MISFIT = "from ale_tests import TestsReward\nclass Fixed(TestsReward):\n    async def score(self, task): "


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (BLOCKING, "Fixed.score must be `async def`, as in the contract."),
        (MISFIT, "Fixed.score must take the contract's arguments, (self, task: 'Task', sandbox: 'GradedSandbox'"),
    ],
)
def test_a_reward_that_cannot_be_called_as_the_contract_says_refuses_the_run(
    source: str, sentence: str, tmp_path: Path
) -> None:
    write_package(tmp_path, "far-away", source + "return None", kind="reward")
    done = run_with(tmp_path, "reward", ["Done."])
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_reward_that_gives_its_coroutine_away_fails_its_episodes(tmp_path: Path) -> None:
    lazy = "async def later():\n    return 1\n" + REWARD + "return later()"
    write_package(tmp_path, "far-away", lazy, kind="reward")
    done = run_with(tmp_path, "reward", ["Done."], "--only", "rollout")
    assert done.returncode == 1
    assert "The reward plugin must answer with an ale.trajectory.Score" in done.stderr
    assert "Traceback" not in done.stderr


def test_rollouts_that_all_failed_are_no_success(tmp_path: Path) -> None:
    write_package(tmp_path, "far-away", SCAFFOLD + "raise ValueError('mine')", kind="scaffold")
    done = run_with(tmp_path, "scaffold", ["Done."], "--only", "rollout")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: No rollout of step 1 can be trusted")


@pytest.mark.parametrize("word", [r"echo \ud800", r"echo \udcff \u0000"])
def test_half_a_character_in_a_call_spoils_nothing(word: str, tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "shell", "arguments": {"command": "' + word + '"}}\n</tool_call>'
    done = run_with(tmp_path, "", [call, "Done."])
    assert done.returncode == 0, done.stderr
    assert "could not be used" not in done.stdout
    with RunStore.open(tmp_path / "out") as store:
        for trajectory in store.trajectories():
            assert trajectory.failure is None
            asked = whole_characters(json.loads(f'"{word}"'))  # no text can carry half a character
            assert trajectory.observations[0].arguments["command"] == asked
    assert sorted(path.name for path in (tmp_path / "out").glob("run.db*")) == ["run.db"], "one file, when it is over"


def test_validate_makes_the_checks_of_the_run_with_the_same_arguments(tmp_path: Path) -> None:
    run_with(tmp_path, "", ["Done."])
    text = (tmp_path / "run.yaml").read_text()
    (tmp_path / "run.yaml").write_text(text + "rl: {steps: 1}\n")
    whole, rollout, train = (
        subprocess.run(
            [program(), "config", "validate", tmp_path / "run.yaml", *half],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        for half in ([], ["--only", "rollout"], ["--only", "train", "--from", tmp_path / "none"])
    )
    assert whole.returncode == 2
    assert whole.stderr.startswith("error: trainer: 'cpt', 'sft' and 'rl' need a trainer")
    assert (rollout.returncode, rollout.stdout) == (0, f"tasks: 8192 train\n{tmp_path / 'run.yaml'} is valid.\n")
    assert train.returncode == 2
    assert "there is no run folder" in train.stderr
