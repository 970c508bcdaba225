"""These tests check, with real sandboxes and tests and through the command line, that tasks which are fit for training
are separated from others."""

from __future__ import annotations

import json
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ale_command import FINISH, ale, summary_of
from support.fake_packages import Install
from support.forked_ale import ForkedAle

from ale.errors import ConfigError
from ale.session.tokenizer import byte_tokenizer
from ale.store.run_store import RunStore

SOURCE = """
from ale.specs.driver import Driver, PluginConfig
from ale.specs.tasks import TaskSource
from ale.task import Task, TaskTests

DONE, SOLVE = "test -f done", "echo 1 > done"

def made(id, command=DONE, solution=SOLVE, files={}):
    tests = TaskTests(command=command, files=files, timeout_s=5)
    return Task(id=id, instruction=f"Do {id}.", tests=tests, solution=solution)

ALL = {
    "easy": made("easy"),
    "medium": made("medium"),
    "hard": made("hard"),
    "unsolved": made("unsolved", solution=None),
    "broken": made("broken", solution="exit 3"),
    "trivial": made("trivial", command="true"),
    "flaky": made("flaky", command="test $(od -An -N1 -tu1 /dev/urandom) -lt 128"),
    "untestable": made("untestable", command="no_such_program_x"),
    "untested": Task(id="untested", instruction="Say it.", solution="echo 1 > done"),
    "peeking": made("peeking", "test -f done && grep -q HIDDEN $ALE_TESTS/secret",
        "find . /tmp -xdev -type f -exec grep -ls HIDDEN {} + | grep -q . && echo 1 > done; true",
        {"secret": "HIDDEN"}),
}

class Fixed(Driver, TaskSource):
    api_version = ">=1.0,<1.2"
    class Config(PluginConfig):
        only: tuple[str, ...] = tuple(ALL)
        endless: bool = False
        slow_s: float = 0
    def tasks(self, split):
        while split == "train":
            for name in self.config.only:
                slow = {"solution": f"sleep {self.config.slow_s}; {SOLVE}"} if self.config.slow_s else {}
                yield ALL[name].model_copy(update=slow)
            if not self.config.endless:
                return
        yield from [ALL["easy"]]
"""
POLICY = '''
import itertools, json
turns = {{}}
def answer(call):
    """Solves easy always, medium every other time, hard never."""
    task = next(name for name in ("easy", "medium", "hard", "unsolved") if f"Do {{name}}." in call.prompt)
    sessions = turns.setdefault(task, [])
    if call.session not in sessions:
        sessions.append(call.session)
    solves = task == "easy" or (task in ("medium", "unsolved") and sessions.index(call.session) % 2 == 0)
    if solves and call.call == 0:
        return '<tool_call>\\n{{"name": "shell", "arguments": {{"command": "echo 1 > done"}}}}\\n</tool_call>'
    return {finish!r}
'''
RUN = """
name: fit
run_dir: {runs}
tasks: {{use: fixture, only: [{only}]}}
engine: {{use: scripted, function: "{policy}:answer"}}
trainer: null
algorithm: {{use: ipa, group_size: 2}}
rollout: {{concurrency: 4, max_calls: 3, max_tokens: 200, max_context: 4000}}
"""


@pytest.fixture
def run_file(tmp_path: Path, install: Install) -> Path:
    """A run over the tasks above, whose policy is a function."""
    install("task-fixture", SOURCE, kind="tasks", name="fixture")
    policy = tmp_path / "policy.py"
    policy.write_text(POLICY.format(finish=FINISH))
    path = tmp_path / "run.yaml"
    path.write_text(RUN.format(runs=tmp_path / "runs", policy=policy, only="easy, medium, hard, unsolved"))
    return path


def files_in(folder: Path) -> list[Path]:
    """What is in a folder, without the byte code of modules."""
    return [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts]


def instances(path: Path) -> dict[str, dict[str, Any]]:
    """The instances of a report by id."""
    return {one["id"]: one for one in json.loads(path.read_text())["instances"]}


def test_unfit_tasks_are_found_without_a_model(run_file: Path, tmp_path: Path) -> None:
    names = "tasks.only=[easy,unsolved,broken,trivial,flaky,untestable,peeking]"
    out = tmp_path / "checked.json"
    done = ale("tasks", "check", run_file, names, "--repeats", "8", "--out", out)
    assert done.returncode == 1, done.stderr
    found = instances(out)
    assert {name for name, one in found.items() if one["kept"]} == {"easy", "unsolved"}
    reasons = {name: one["reason"] for name, one in found.items()}
    assert reasons["broken"] == "its reference solution does not pass"
    assert reasons["trivial"] == "its tests pass on the untouched environment"
    assert reasons["flaky"].startswith("the verdict changes on")
    assert "no_such_program_x" in reasons["untestable"]
    assert reasons["peeking"] == "its reference solution does not pass", "tests are there only when it is scored"
    assert found["easy"]["checks"] == {
        "untouched": [False] * 8,
        "solution": [True] * 8,
        "problem": "",
        "not_scored": "",
    }
    assert found["unsolved"]["checks"]["solution"] is None
    assert "2 of 7 tasks are kept." in done.stdout
    fine = ale("tasks", "check", run_file, "tasks.only=[easy,medium]", "--repeats", "1", "--json")
    assert fine.returncode == 0, fine.stderr
    assert [one["kept"] for one in json.loads(fine.stdout)["instances"]] == [True, True]


def test_a_reward_of_what_an_agent_says_is_not_asked_about_tasks_that_nobody_played(
    run_file: Path, tmp_path: Path
) -> None:
    called = tmp_path / "called"
    function = tmp_path / "reward.py"
    function.write_text(f"def score(completion):\n    open({str(called)!r}, 'a').close()\n    return 1\n")
    reward = f"reward={{use: python, path: {function}, function: score}}"
    done = ale("tasks", "check", run_file, "tasks.only=[easy,broken]", reward, "--json")
    assert done.returncode == 0, done.stderr
    for one in json.loads(done.stdout)["instances"]:
        assert one["kept"]
        assert one["checks"]["untouched"] == []
        assert one["checks"]["not_scored"].startswith("it was read, but not scored")
    assert not called.exists()
    mixed = ale("tasks", "check", run_file, "tasks.only=[easy,untested]", "--repeats", "1")
    assert mixed.returncode == 0, mixed.stderr
    assert "1 of them were read but not scored" in mixed.stdout
    assert "2 of 2 tasks are kept" in mixed.stdout


def test_tasks_are_selected_by_pass_rate_and_then_trained_on(run_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept.json"
    done = ale(
        "tasks",
        "select",
        run_file,
        "tasks.only=[easy,medium,hard,unsolved,broken]",
        "--out",
        out,
        "--attempts",
        "4",
        "--repeats",
        "2",
    )
    assert done.returncode == 0, done.stderr
    found = instances(out)
    rates = {name: one["pass_rate"] for name, one in found.items()}
    assert rates == {"easy": 1.0, "medium": 0.5, "hard": 0.0, "unsolved": 0.5, "broken": None}
    assert {name for name, one in found.items() if one["kept"]} == {"medium", "unsolved"}
    assert found["easy"]["reason"] == "too easy: the pass rate 1.00 is above 0.9"
    assert found["medium"]["rates"] == {"engine": {"passed": 2, "attempts": 4}}
    with RunStore.open(out.with_suffix(".run")) as store:
        assert store.count("stage = 'attempt'") == 16, "a broken task is not tried"
    for endless in ("false", "true"):
        dump = tmp_path / f"dump-{endless}"
        trained = ale(
            "run",
            run_file,
            "--only",
            "rollout",
            f"rl={{steps: 3, prompts_per_step: 1, instances: {out}}}",
            f"tasks.endless={endless}",
            "--out",
            dump,
        )
        summary_of(trained)
        with RunStore.open(dump) as store:
            steps = {t.step: t.task_id for t in store.trajectories()}
        assert steps == {1: "medium", 2: "unsolved", 3: "medium"}


def test_the_rates_of_several_policies_count_alike(run_file: Path, tmp_path: Path) -> None:
    policies = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        byte_tokenizer().save(folder)
        (folder / "config.json").write_text("{}")
        policies += ["--policy", str(folder)]
    out = tmp_path / "kept.json"
    done = ale(
        "tasks", "select", run_file, *policies, "--attempts", "2", "--repeats", "1", "--count", "3", "--out", out
    )
    assert done.returncode == 0, done.stderr
    found = instances(out)
    assert list(found) == ["easy", "medium", "hard"]
    assert found["medium"]["rates"] == {str(tmp_path / n): {"passed": 1, "attempts": 2} for n in ("a", "b")}
    assert json.loads(out.read_text())["policies"] == [str(tmp_path / n) for n in ("a", "b")]


def test_an_interrupted_selection_goes_on(run_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept.json"
    arguments = [
        "tasks",
        "select",
        str(run_file),
        "tasks.slow_s=0.3",
        "rollout.concurrency=1",
        "--attempts",
        "2",
        "--repeats",
        "2",
        "--out",
        str(out),
    ]
    process = ForkedAle(arguments, tmp_path)
    database = out.with_suffix(".run") / "run.db"
    try:
        deadline = time.monotonic() + 60
        while not database.exists() or finished(database) < 9:
            assert process.poll() is None, process.wait(1)
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    before = finished(database)
    assert before < 24
    assert not out.exists()
    done = ale(*arguments)
    assert done.returncode == 0, done.stderr
    with RunStore.open(database.parent) as store:
        counts = {
            stage: store.count("stage = ?", (stage,)) for stage in ("check untouched", "check solution", "attempt")
        }
    assert counts == {"check untouched": 8, "check solution": 8, "attempt": 8}, "nothing was run twice"
    again = ale(*arguments)
    assert again.returncode == 0
    assert finished(database) == 24
    other = ale(*arguments, "rollout.temperature=0.5")
    assert other.returncode == 2
    assert "made with other settings" in other.stderr


def finished(database: Path) -> int:
    """How many rollouts a run has finished; none as long as it is writing its first records."""
    with suppress(ConfigError), RunStore.open(database.parent) as store:
        return store.count()
    return 0


def test_a_file_that_cannot_be_trained_on_is_refused(run_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "ids.json"
    for text, sentence in (("[]", "keeps no task"), ('["easy", "no"]', "does not have in its split 'train': no")):
        file.write_text(text)
        done = ale("run", run_file, "--only", "rollout", f"rl={{steps: 1, prompts_per_step: 1, instances: {file}}}")
        assert done.returncode == 2, done.stdout
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--min-pass", "0.8", "--max-pass", "0.2"], "no task could be kept"),
        (["--policy", "nowhere"], "--policy nowhere: there is no model"),
        (["tasks.endless=true"], "say with --count how many to look at"),
    ],
)
def test_what_cannot_be_selected_is_said(run_file: Path, tmp_path: Path, options: list[str], sentence: str) -> None:
    done = ale("tasks", "select", run_file, *options, "--out", tmp_path / "x.json")
    assert done.returncode == 2, done.stdout
    assert sentence in done.stderr


@pytest.mark.parametrize("out", [".", "kept.run"])
def test_a_report_that_cannot_stand_there_is_refused_before_anything_runs(
    run_file: Path, tmp_path: Path, out: str
) -> None:
    before = files_in(tmp_path)
    done = ale("tasks", "check", run_file, "--out", tmp_path / out)
    assert done.returncode == 2, done.stdout
    assert "give a file for the report, such as kept.json" in done.stderr
    assert files_in(tmp_path) == before
