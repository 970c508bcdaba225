"""Runs over an environment with `reset` and `step`: the example, and a published one by its own name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ale_command import REPOSITORY, ale, summary_of

from ale_train.python_api import evaluate, run


@pytest.mark.slow
def test_a_tiny_policy_gets_better_at_guessing_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    result = run("examples/environment.yaml", "rl.steps=16", "eval.every=0", out=tmp_path / "run", quiet=True)
    assert result.summary["status"] == "completed"
    found = result.evaluations
    assert found["after_rl"]["success"] > found["after_sft"]["success"] + 0.05
    again = evaluate(result, n=2, episodes=200, out=tmp_path / "again", quiet=True).evaluations["final policy of run"]
    assert (again["episodes"], again["tasks"]) == (200, 100)
    assert again["success"] == pytest.approx(found["after_rl"]["success"], abs=0.2), "of the policy that was trained"
    rolled = result.trajectories("rl")
    assert all(t.failure is None and t.reward is not None and t.sequences[0].messages for t in rolled)
    assert all(sum(t.reward.by_chunk) == t.reward.value for t in rolled if t.reward)


def test_an_environment_that_nobody_would_play_is_refused(tmp_path: Path) -> None:
    (tmp_path / "game.py").write_text("class Game: ...")
    engine = "{use: scripted, answers: ['1']}"
    (tmp_path / "run.yaml").write_text(
        f"tasks: {{use: env, env: 'game.py:Game'}}\nreward: steps\ntrainer: null\nengine: {engine}\n"
    )
    done = ale("config", "validate", "run.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "error: scaffold: the tasks plugin 'env' needs a scaffold with 'EnvScaffold'" in done.stderr
    assert done.stderr.rstrip().endswith("which 'iflow' cannot; use 'env'.")


TASKS = """
from ale_env_loop import EnvTasks, EnvTasksConfig


class DotsTasks(EnvTasks):
    class Config(EnvTasksConfig):
        env: str = "acme_dots.game:CountDots"
        heldout_episodes: int = 20

    config: Config
"""
GAME = """
class CountDots:
    def reset(self, seed):
        self.dots = seed // 2 % 4 + 1
        return "." * self.dots

    def step(self, action):
        return "over", float(action == str(self.dots)), True
"""
RUN = """
run_dir: {runs}
tasks: dots
scaffold: env
reward: steps
engine: {{use: scripted, answers: ["2"]}}
trainer: null
eval: {{episodes: 20}}
"""


def test_a_published_environment_has_a_name_of_its_own(
    install: Callable[..., None], run_file: Callable[[str], Path], tmp_path: Path
) -> None:
    install("acme_dots", TASKS, name="dots", kind="tasks", target="acme_dots:DotsTasks")
    (tmp_path / "acme_dots" / "game.py").write_text(GAME)
    summary = summary_of(ale("eval", run_file(RUN)))
    (found,) = summary["heldout"].values()
    assert (found["reward"], found["success"]) == (0.25, 0.25)
    assert summary["failures"] == {}
