"""These tests make runs whose observers add metrics of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ale_command import SCRIPTED, ale, summary_of
from support.fake_packages import Install

from ale.store.run_store import RunStore

RunFile = Callable[[str], Path]


ADDS = """
from ale.specs.events import Observer, hookimpl

class Adds(Observer):
    api_version = ">=1.0,<1.2"
    @hookimpl
    def ale_add_metrics(self, stage, step, trajectories, metrics):
        return ANSWER
    @hookimpl
    def ale_step_finished(self, stage, step, metrics):
        print("finished", stage, step, metrics.get("mine/seen"))
"""


def install_observer(install: Install, answer: str) -> None:
    """Install the observer `adds`, which adds what the expression says."""
    install("adds", ADDS.replace("ANSWER", answer), kind="hooks", name="adds", target="adds:Adds")


def test_what_an_observer_adds_is_stored_and_reaches_report_and_observers(
    run_file: RunFile, install: Install, tmp_path: Path
) -> None:
    install_observer(
        install, '{"mine/seen": len(trajectories), "mine/chunks": sum(len(t.chunks) for t in trajectories)}'
    )
    stages = {
        "eval": (3, ("rl=null", "eval.episodes=3")),
        "rl": (4, ("--only", "rollout", "rl.steps=1", "rl.prompts_per_step=2")),
    }
    for stage, (rollouts, settings) in stages.items():
        folder = tmp_path / stage
        done = ale("run", run_file(SCRIPTED), "--out", folder, *settings, "observers=[adds, report]")
        assert summary_of(done)["status"] == "completed"
        assert f"finished {stage} {int(stage == 'rl')} {float(rollouts)}" in done.stdout, done.stderr
        with RunStore.open(folder) as store:
            stored, chunks = store.metrics(stage), sum(len(t.chunks) for t in store.trajectories())
        ((_, seen),), ((_, counted),) = stored["mine/seen"], stored["mine/chunks"]
        assert (seen, counted) == (rollouts, chunks)
        assert ("in_flight/limit" in stored) == (stage == "rl"), "also of rollouts without training"
        assert "mine/chunks" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ('{"mine": 1, "episodes": 0}', "it adds the metric 'episodes', which is there already"),
        ('{"mine": float("nan")}', "it adds the metric 'mine' = nan, which is no finite number"),
        ('{"mine": "high"}', "it adds the metric 'mine' = 'high', which is no finite number"),
        ("[1]", "it must return a mapping of names to numbers, or None, not list"),
        ("metrics.update(success=1)", "'mappingproxy' object has no attribute 'update'"),
    ],
)
def test_a_wrong_metric_is_an_error_of_its_observer_and_the_run_completes(
    run_file: RunFile, install: Install, tmp_path: Path, answer: str, says: str
) -> None:
    install_observer(install, answer)
    done = ale(
        "run", run_file(SCRIPTED), "--out", tmp_path / "run", "rl=null", "eval.episodes=2", "observers=[adds, report]"
    )
    assert summary_of(done)["status"] == "completed"
    (warning,) = [
        line for line in done.stderr.splitlines() if "the observer 'adds' failed in ale_add_metrics: " in line
    ]
    assert says in warning
    with RunStore.open(tmp_path / "run") as store:
        assert store.metrics("eval")["episodes"] == [(0, 2.0)]
        assert "mine" not in store.metrics("eval")
