"""Evaluations of whole runs, through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import ale
from support.fake_packages import write_package

from ale.store.run_store import RunStore

RUN = """
name: judged
tasks: {use: bash, families: [write, find], heldout_tasks: 3}
engine: {use: scripted, answers: ["<tool_call>\\n{\\"name\\": \\"finish\\", \\"arguments\\": {}}\\n</tool_call>"]}
trainer: null
"""


def evaluate(folder: Path, *settings: str) -> tuple[dict[str, Any], Path]:
    """The evaluation of a run without training, and the run's folder."""
    (folder / "run.yaml").write_text(RUN)
    done = ale("run", folder / "run.yaml", "--out", folder / "run", *settings)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((folder / "run" / "summary.json").read_text())["heldout"].values()
    assert found["success"] == 0, "finishing at once solves nothing"
    return found, folder / "run"


def test_without_n_tasks_are_repeated_until_there_are_enough_episodes(tmp_path: Path) -> None:
    found, folder = evaluate(tmp_path, "eval.episodes=8")
    assert found["episodes"] == 8
    assert found["tasks"] < 8
    with RunStore.open(folder) as store:
        assert len({t.group for t in store.trajectories("stage = 'eval'")}) == 8


def test_with_n_each_task_has_so_many_runs_and_none_is_repeated(tmp_path: Path) -> None:
    found, folder = evaluate(tmp_path, "eval={episodes: 1000, n: 3}")
    assert found["episodes"] == 3 * found["tasks"]
    assert {"pass@1", "pass@2", "pass@3", "pass^3", "avg@3", "pass@3_low"} <= set(found)
    with RunStore.open(folder) as store:
        groups = [(t.group, t.task_id) for t in store.trajectories("stage = 'eval'")]
        seeds = [t.seed for t in store.trajectories("stage = 'eval'")]
        metrics = store.metrics("eval")
    assert len(set(groups)) == found["tasks"]
    assert len(set(seeds)) == len(seeds), "each run is a sample of its own"
    assert metrics["pass@3"] == [(0, 0.0)]


def test_a_set_has_its_own_task_source_split_and_tags(tmp_path: Path) -> None:
    sets = (
        "{train: {split: train, episodes: 2}, find: {tags: [find]}, not_find: {tags: '!find'}, "
        "count: {tasks: {use: bash, families: [count]}, n: 1}}"
    )
    found, folder = evaluate(tmp_path, "eval.episodes=3", f"eval.sets={sets}")
    assert found["episodes"] == 2 + 3 + 3 + found["sets"]["count"]["tasks"]
    with RunStore.open(folder) as store:
        seen = {name: list(store.trajectories("stage = ?", (f"eval.{name}",))) for name in found["sets"]}
    assert {t.split for t in seen["train"]} == {"train"}
    families = {name: {t.tags[0] for t in of} for name, of in seen.items()}
    assert families["find"] == {"find"}
    assert families["not_find"] == {"write"}
    assert families["count"] == {"count"}


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("eval.n=200", "eval: n is 200, which is more than the 128 of 'episodes'"),
        ("eval.sets={a: {n: 9, episodes: 4}}", "eval: the set 'a': n is 9"),
        ("eval.sets={a b: {}}", "eval.sets.a b: 'a b' cannot name an evaluation set"),
        ("eval.sets={a: {n: x}}", "eval.sets.a.n: input should be a valid integer"),
        ("eval.sets={a: 3}", "eval.sets.a: must be a mapping"),
        (
            "eval.sets={tasks: {tasks: {use: bash, familiess: [a]}}}",
            "eval.sets.tasks.tasks.familiess: there is no such key",
        ),
        ("eval.sets={a: {splt: x}}", "eval.sets.a.splt: there is no such key. Did you mean 'split'?"),
        ("eval.sets={a: {tasks: nowhere}}", "eval.sets.a.tasks: there is no tasks plugin 'nowhere'"),
        ("eval.tags=nothing", "eval.tags: the split 'heldout' has no task with the tags nothing"),
        ("eval.sets={a: {tags: [x, y]}}", "eval.sets.a.tags: the split 'heldout' has no task with the tags x, y"),
    ],
)
def test_a_mistake_is_a_sentence_before_anything_runs(tmp_path: Path, setting: str, sentence: str) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    done = ale("run", tmp_path / "run.yaml", "--out", tmp_path / "run", setting)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


FLAKY = """
from ale.errors import SandboxError
from ale.trajectory import Score
from ale_tests import TestsReward


class Flaky(TestsReward):
    tried = {}

    async def score(self, task, sandbox, trajectory):
        tries = Flaky.tried[trajectory.group] = Flaky.tried.get(trajectory.group, 0) + 1
        number = int(trajectory.group.rpartition(".")[2])
        if number == 0 or (number == 1 and tries == 1):
            raise SandboxError("The sandbox is lost.")
        return Score(1.0, True, parts={"form": 0.25})
"""


def test_episodes_that_a_fault_ended_are_made_again_counted_and_never_zeros(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "packages").mkdir()
    write_package(tmp_path / "packages", "flaky", FLAKY, name="flaky", target="flaky:Flaky")
    settings = ("eval.episodes=4", "reward=flaky", "rollout.max_resamples=1", "sandbox={use: local, isolation: none}")
    done = ale(
        "run",
        tmp_path / "run.yaml",
        "--out",
        tmp_path / "run",
        *settings,
        "needs.network=full",
        path=tmp_path / "packages",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["heldout"]["of_the_policy"]
    assert (found["success"], found["episodes"]) == (1.0, 3), (
        "two tries were lost for the first task, one for the second"
    )
    assert (found["resampled"], found["unfilled"], found["parts/form"]) == (2, 1, 0.25)
    assert "2 episodes made again after faults, 1 given up: 3 x no reward (" in done.stdout
    assert f"\n  {found['lost']}\n" in done.stdout, "the end of a run says it of the whole run"
