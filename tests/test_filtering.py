"""In a whole run, rejected rollouts appear in the store, in each step's metrics and in the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ale_command import SCRIPTED, TINY, ale, summary_of
from support.fake_packages import Install

from ale.store.run_store import RunStore

REWARD = """
import itertools
from ale.errors import TaskError
from ale.specs.driver import Driver
from ale.specs.reward import Reward
from ale.trajectory import Score
class Fixed(Driver, Reward):
    api_version = ">=1.0,<1.2"
    calls = itertools.count()
    async def score(self, task, sandbox, trajectory):
        if next(self.calls) % 3 == 0:
            raise TaskError("The judge is away.")
        return Score(0.0, False)
"""


def test_what_is_rejected_shows_in_every_step(
    run_file: Callable[[str], Path], tmp_path: Path, install: Install
) -> None:
    install("reward-fixture", REWARD, name="moody")
    out = tmp_path / "dump"
    # Three in four requests of a step are rejected once (every third score), one at a time.
    done = ale(
        "run",
        run_file(SCRIPTED),
        "--only",
        "rollout",
        "reward=moody",
        "rollout.concurrency=1",
        "observers=[report]",
        "--out",
        out,
    )
    summary = summary_of(done)
    with RunStore.open(out) as store:
        rejected = [t for t in store.trajectories() if t.rejected]
        metrics = {name: dict(values) for name, values in store.metrics("rl").items()}
        made = {step: store.count("step = ?", (step,)) for step in (1, 2)}
        lost = {step: store.count("step = ? AND rejected IS NOT NULL", (step,)) for step in (1, 2)}
    assert {(t.rejected, t.rejected_because, t.reward) for t in rejected} == {("no reward", "The judge is away.", None)}
    for step in (1, 2):
        assert made[step] - lost[step] == 4
        assert metrics["rejected"][step] == metrics["rejected/no_reward"][step] == lost[step] / made[step] > 0
        assert (metrics["resampled"][step], metrics["unfilled"][step]) == (lost[step], 0)
        assert metrics["reward"][step] == 0.0
    assert summary["failures"] == {"task": len(rejected)}
    report = (out / "report.html").read_text()
    assert "Why rollouts were rejected" in report
    assert "Rejected rollouts" in report


def test_even_groups_are_replaced_while_training(run_file: Callable[[str], Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = ale(
        "run",
        run_file(TINY),
        "rl.steps=1",
        "rl.resample_even_groups=3",
        "eval.every=0",
        "sft.steps=1",
        "reward.fail_value=0.0",
        "--out",
        out,
    )
    summary_of(done)
    with RunStore.open(out) as store:
        metrics = {name: values[0][1] for name, values in store.metrics("rl").items()}
        evaluated = store.metrics("eval")
        groups = {t.group for t in store.trajectories("stage = 'rl'")}
    # A policy of one step fails alike in every group.
    assert (metrics["even_groups"], metrics["replaced_groups"], len(groups)) == (5, 3, 5)
    assert metrics["rollouts"] == 4
    assert metrics["tokens/replaced"] > 0
    assert metrics["tokens/lost"] == 0
    assert metrics["tokens/sampled"] == metrics["tokens/replaced"] + metrics["tokens/trained"]
    assert set(dict(evaluated["rejected"]).values()) == {0.0}
    refused = ale(
        "run",
        run_file(TINY),
        "rl.resample_even_groups=3",
        "algorithm.group_size=1",
        "sft.steps=1",
        "sft.demonstrations.count=4",
        "eval.episodes=1",
    )
    assert refused.returncode == 2
    assert "rl.resample_even_groups: with algorithm.group_size=1" in refused.stderr
