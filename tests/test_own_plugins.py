"""Runs whose parts are classes in files: named in a run file, an include, an override or a mapping; and what their run
folders keep of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from ale_command import TINY, ale, summary_of

from ale.store.run_store import RunStore
from ale_train.python_api import evaluate, run

PARTS = '''
from pathlib import Path
from words_of_this_test import QUESTION
from ale.specs.driver import Driver, PluginConfig
from ale.specs.events import Observer, hookimpl
from ale.specs.reward import Reward
from ale.specs.tasks import TaskSource
from ale.task import Task
from ale.trajectory import Score
from ale_chat import Chat
from ale_engines.scripted import ScriptedEngine
from ale.session.tool_formats import Hermes
from pydantic import Field

class Numbers(Driver, TaskSource):
    """Tasks that ask for a number."""
    class Config(PluginConfig):
        count: int = Field(3, gt=0, description="How many tasks there are.")
        stop: Path | None = Field(None, description="A file; while it is there, tasks end with an error.")
    def tasks(self, split):
        for n in range(self.config.count):
            if n == 2 and self.config.stop and self.config.stop.exists():
                raise RuntimeError("stopped by this test")
            yield Task(id=f"t{n}", instruction=QUESTION.format(n))

class Fixed(Driver, Reward):
    """The same number for every rollout."""
    class Config(PluginConfig):
        value: float = Field(0.5, description="The number.")
    @classmethod
    def uses_sandbox(cls, config):
        return False
    async def score(self, task, sandbox, trajectory):
        return Score(self.config.value, self.config.value >= 1)

class Talk(Chat):
    """A conversation."""

class Says(ScriptedEngine):
    """What a list says."""

class Tags(Hermes):
    """A tool format."""

class Watch(Observer):
    """Adds a metric."""
    class Config(PluginConfig):
        number: float = Field(1.0, description="The metric.")
    @hookimpl
    def ale_add_metrics(self):
        return {"own/number": self.config.number}

@hookimpl
def ale_run_started(run_dir):
    (run_dir / "seen").touch()
'''
RUN = """
include: [parts/base.yaml]
name: own
scaffold: ./mine.py:Talk
sandbox: none
engine: {use: "./mine.py:Says", answers: ["1", "2"]}
session: {tool_format: "./mine.py:Tags"}
trainer: null
observers: [{use: "./mine.py:Watch", number: 3}, "./mine.py:ale_run_started"]
eval: {episodes: 4, sets: {a: {}, b: {tasks: {use: "./mine.py:Numbers", count: 1}}}}
"""
BASE = """
tasks: {mix: [{use: "../mine.py:Numbers", count: 2, tags: few}, "../mine.py:Numbers"]}
reward:
  select:
    - {when: few, use: ../mine.py:Fixed, value: 1}
    - ../mine.py:Fixed
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a run file, a file that it includes, and a file of classes."""
    place = tmp_path / "mine"
    (place / "parts").mkdir(parents=True)
    (place / "mine.py").write_text(PARTS)
    (place / "words_of_this_test.py").write_text('QUESTION = "What is {}?"\n')
    (place / "run.yaml").write_text(RUN)
    (place / "parts" / "base.yaml").write_text(BASE)
    return place


def test_every_part_of_a_run_may_be_a_class_in_a_file_relative_to_the_run_file(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = summary_of(ale("run", folder / "run.yaml", "--out", out, cwd=tmp_path))
    assert summary["heldout"]["of_the_policy"]["sets"].keys() == {"a", "b"}
    with RunStore.open(out) as store:
        assert store.metrics("eval")["own/number"][0][1] == 3
        assert {t.reward.value for t in store.trajectories() if t.reward} == {0.5, 1.0}
    assert (out / "seen").exists()
    written = yaml.safe_load((out / "config.yaml").read_text())
    assert written["engine"]["use"] == "files/mine.py:Says"
    assert written["tasks"]["mix"][1] == "files/mine.py:Numbers"
    assert written["eval"]["sets"]["b"]["tasks"]["use"] == "files/mine.py:Numbers"
    assert (out / "files" / "mine.py").read_text() == PARTS
    assert (out / "files" / "words_of_this_test.py").exists(), "what it imports from beside it"
    origins = json.loads((out / "files" / "origins.json").read_text())
    assert origins["mine.py"]["from"] == str(folder / "mine.py")


def test_a_run_folder_is_loaded_when_the_files_are_gone_and_the_folder_has_moved(folder: Path, tmp_path: Path) -> None:
    summary_of(ale("run", folder / "run.yaml", "--out", tmp_path / "out"))
    shutil.rmtree(folder)
    (tmp_path / "out").rename(tmp_path / "moved")
    done = ale("config", "validate", tmp_path / "moved" / "config.yaml")
    assert done.returncode == 0, done.stderr
    again = summary_of(ale("run", tmp_path / "moved" / "config.yaml", "--out", tmp_path / "again"))
    assert again["status"] == "completed"
    assert (tmp_path / "again" / "files" / "mine.py").read_text() == PARTS


def test_a_run_goes_on_with_its_own_copy_and_says_that_the_file_has_changed(folder: Path, tmp_path: Path) -> None:
    stop, out = tmp_path / "stop", tmp_path / "out"
    stop.touch()
    one = ("tasks={use: ./mine.py:Numbers, count: 4, stop: " + str(stop) + "}", "eval.sets={}", "reward=mine.py:Fixed")
    failed = ale("run", folder / "run.yaml", *one, "--out", out, cwd=folder)
    assert failed.returncode != 0
    assert "stopped by this test" in failed.stderr
    stop.unlink()
    (folder / "mine.py").write_text("raise RuntimeError('not this one')\n")
    done = ale("run", "--resume", out)
    assert summary_of(done)["status"] == "completed"
    assert f"{folder / 'mine.py'} has changed since the run began; it goes on with its own copy in " in done.stderr
    changed = ale("run", "--resume", out, "reward.value=1")
    assert changed.returncode == 2
    assert "--fork" in changed.stderr


def test_an_override_is_relative_to_the_current_folder_and_replaces_the_plugin(folder: Path, tmp_path: Path) -> None:
    shown = ale("config", "show", folder / "run.yaml", "reward=./mine.py:Fixed", "reward.value=0.25", cwd=folder)
    assert yaml.safe_load(shown.stdout)["reward"] == {"use": f"{folder}/mine.py:Fixed", "value": 0.25}
    other = ale(
        "config", "show", folder / "run.yaml", "reward={use: mine/mine.py:Fixed}", "reward.use=exact", cwd=tmp_path
    )
    assert yaml.safe_load(other.stdout)["reward"] == {"use": "exact"}
    more = ale("config", "show", folder / "run.yaml", "observers.1=mine.py:Watch", cwd=folder)
    assert yaml.safe_load(more.stdout)["observers"][1] == f"{folder}/mine.py:Watch"


def test_mappings_in_python_are_relative_to_the_current_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    data = {
        "tasks": "./mine.py:Numbers", "scaffold": "chat", "sandbox": "none", "trainer": None, "eval": {"episodes": 3},
        "reward": {"use": Path("mine.py:Fixed"), "value": 1.0}, "engine": {"use": "mine.py:Says", "answers": ["1"]},
    }  # fmt: skip
    result = run(data, out=tmp_path / "out", quiet=True)
    assert result.evaluations["of_the_policy"]["success"] == 1.0
    monkeypatch.chdir(tmp_path)
    again = evaluate(tmp_path / "out" / "config.yaml", out=tmp_path / "again", quiet=True, n=1)
    assert len(again.evaluations) == 1


def test_files_of_one_name_from_two_folders_are_both_kept(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PARTS.replace('"The same number', '"Another number').replace("0.5", "0.75"))
    out = tmp_path / "out"
    summary_of(ale("run", folder / "run.yaml", "reward=./mine.py:Fixed", "--out", out, cwd=tmp_path))
    written = yaml.safe_load((out / "config.yaml").read_text())
    assert written["reward"]["use"] == "files/2/mine.py:Fixed"
    assert "0.75" in (out / "files" / "2" / "mine.py").read_text()
    assert ale("config", "validate", out / "config.yaml").returncode == 0


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("engine=./mine.py:Sais", "error: engine: mine.py has no class 'Sais'. Did you mean 'Says'?"),
        ("engine={use: mine.py:Says, answrs: [a]}", "engine.answrs: there is no such key. Did you mean 'answers'?"),
        ("tasks=./mine.py:Fixed", "tasks: Fixed of mine.py is no tasks driver (it is one of kind 'reward')"),
        ("observers=[./mine.py:Watch, gone.py:Watch]", "observers.1: there is no file "),
        ("eval.sets.b.tasks.cont=1", "eval.sets.b.tasks.cont: there is no such key. Did you mean 'count'?"),
        (
            "algorithm=./mine",
            "algorithm: there is no algorithm plugin './mine'. A class in a file is written ./mine.py",
        ),
    ],
)
def test_a_wrong_class_is_a_sentence_with_its_place(folder: Path, override: str, sentence: str) -> None:
    done = ale("config", "validate", folder / "run.yaml", override, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


LOSS = """
from dataclasses import dataclass
from ale.specs.algorithm import Loss
from ale.specs.trainer import LossOutput
from ale_ipa import IPA

@dataclass(frozen=True)
class Likelihood(Loss):
    weight: float

    def __call__(self, inputs):
        advantages = inputs.chunks.returns[inputs.chunk_ids]
        loss = -self.weight * (advantages * inputs.logprobs).sum() / inputs.normalizer
        return LossOutput(loss, {"own": self.weight * inputs.logprobs.numel() / inputs.normalizer})

class Own(IPA):
    @property
    def loss(self):
        return Likelihood(0.5)
"""


@pytest.mark.slow
def test_a_loss_of_a_file_trains_in_the_processes_of_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TINY.format(runs=tmp_path / "runs"))
    (tmp_path / "own.py").write_text(LOSS)
    settings = ("algorithm={use: ./own.py:Own, group_size: 2}", "trainer.ranks=2", "eval=null", "rl.steps=1")
    summary = summary_of(ale("run", tmp_path / "run.yaml", *settings, "--out", tmp_path / "out", cwd=tmp_path))
    assert summary["status"] == "completed"
    with RunStore.open(tmp_path / "out") as store:
        assert store.metrics("rl")["own"] == [(1, pytest.approx(0.5))]
