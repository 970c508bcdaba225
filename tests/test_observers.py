"""These tests make whole runs with observers, through the command line: each hook is called when its docstring says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ale_command import REPOSITORY, SCRIPTED, TINY, ale, forked_ale, summary_of
from support.fake_packages import Install

from ale.specs.events import HookSpecs
from ale.store.run_store import RunStore
from ale_train import run

RunFile = Callable[[str], Path]
SHELL = '<tool_call>\n{"name": "shell", "arguments": {"command": "echo hé > note"}}\n</tool_call>'

WITNESS = """
import json
from pydantic import Field
from ale.specs.driver import PluginConfig
from ale.specs.events import HookSpecs, Observer, hookimpl

class Witness(Observer):
    api_version = ">=1.0,<1.2"
    class Config(PluginConfig):
        path: str = Field(description="File to write to.")
        fail_in: str = Field("", description="Hook to raise in.")

    async def start(self):
        self.write("start")
    async def close(self):
        self.write("close")
    def write(self, hook, **seen):
        with open(self.config.path, "a") as file:
            file.write(json.dumps({"hook": hook, **seen}, default=str) + "\\n")
        if hook == self.config.fail_in:  # `start` and `close` too
            raise RuntimeError("spam")

    @hookimpl
    def ale_run_started(self, run_id, run_dir, config):
        self.write("ale_run_started", run_id=run_id, there=run_dir.is_dir(), seed=config["name"])
    @hookimpl
    def ale_sandbox_started(self, sandbox_id, episode_id, task):
        self.write("ale_sandbox_started", sandbox=sandbox_id, episode=episode_id, task=task.id)
    @hookimpl
    def ale_before_exec(self, sandbox_id, episode_id, task, command, stdin):
        self.write("ale_before_exec", episode=episode_id, command=command)
    @hookimpl
    def ale_exec_started(self, sandbox_id, episode_id, task, by, command, stdin):
        self.write("ale_exec_started", episode=episode_id, by=by)
    @hookimpl
    def ale_exec_finished(self, sandbox_id, episode_id, task, by, command, result, error):
        self.write("ale_exec_finished", episode=episode_id, by=by, code=result and result.exit_code, error=error)
    @hookimpl
    def ale_model_called(self, session_id, chunk, message):
        self.write("ale_model_called", episode=session_id, sampled=chunk.sampled, role=message.role)
    @hookimpl
    def ale_trajectory_finished(self, trajectory):
        self.write("ale_trajectory_finished", episode=trajectory.id, stage=trajectory.stage)
    @hookimpl
    def ale_filter_trajectory(self, trajectory):
        self.write("ale_filter_trajectory", episode=trajectory.id)
    @hookimpl
    def ale_batch_ready(self, step, batch):
        self.write("ale_batch_ready", step=step, tokens=len(batch.token_ids))
    @hookimpl
    def ale_add_metrics(self, stage, step, trajectories, metrics):
        self.write("ale_add_metrics", stage=stage, step=step, trajectories=[t.id for t in trajectories])
    @hookimpl
    def ale_step_finished(self, stage, step, metrics):
        self.write("ale_step_finished", stage=stage, step=step, metrics=len(metrics))
    @hookimpl
    def ale_run_finished(self, run_id, summary):
        self.write("ale_run_finished", run_id=run_id, status=summary["status"])
"""


@pytest.fixture
def witnessed(tmp_path: Path, run_file: RunFile, install: Install) -> Callable[..., list[dict[str, Any]]]:
    """Runs a run file with the witness installed; gives what it wrote, and checks the exit code."""
    install("the-witness", WITNESS, kind="hooks", name="witness", target="the_witness:Witness")
    path = tmp_path / "witness.jsonl"

    def run(text: str, *overrides: str, fail_in: str = "", code: int = 0) -> list[dict[str, Any]]:
        observer = f"observers: [{{use: witness, path: {path}, fail_in: '{fail_in}'}}]\n"
        file = run_file(text)
        file.write_text(file.read_text() + observer)
        done = ale("run", file, *overrides)
        assert done.returncode == code, done.stderr
        run.stderr = done.stderr  # type: ignore[attr-defined]
        return [json.loads(line) for line in path.read_text().splitlines()]

    return run


def test_every_hook_is_called_where_its_docstring_says(witnessed: Callable[..., list[dict[str, Any]]]) -> None:
    seen = witnessed(TINY)
    hooks = [line["hook"] for line in seen]
    specs = {name for name in vars(HookSpecs) if name.startswith("ale_")}
    elsewhere = {"ale_network_refused"}  # test_network_runs.py
    assert set(hooks) >= specs - elsewhere, "a hook spec that no run calls"
    assert hooks[:2] == ["start", "ale_run_started"]
    assert hooks[-2:] == ["ale_run_finished", "close"]
    assert seen[1]["there"], "the run folder is there when the run is announced"
    assert seen[-2]["status"] == "completed"
    # one episode in the order of its life
    (first, *_) = [line["episode"] for line in seen if line["hook"] == "ale_before_exec"]
    life = [line for line in seen if line.get("episode") == first]
    assert [life[0]["hook"], life[1]["hook"]] == ["ale_sandbox_started", "ale_model_called"]
    assert [line["hook"] for line in life[-2:]] == ["ale_filter_trajectory", "ale_trajectory_finished"]
    agents = [line["hook"] for line in life if line["hook"] == "ale_before_exec" or line.get("by") == "agent"]
    assert agents[:3] == ["ale_before_exec", "ale_exec_started", "ale_exec_finished"]
    assert {"agent", "reward"} <= {line.get("by") for line in seen}
    # demonstrations are given, not sampled; RL and evaluation are sampled
    assert {line["sampled"] for line in seen if line["hook"] == "ale_model_called"} == {True, False}
    steps = [(line["stage"], line["step"]) for line in seen if line["hook"] == "ale_step_finished"]
    assert steps == [
        ("eval", -1),
        ("sft", 0),
        ("sft", 1),
        ("sft", 2),
        ("eval", 0),
        ("rl", 1),
        ("eval", 1),
        ("rl", 2),
        ("eval", 2),
    ]
    assert all(line["tokens"] > 0 for line in seen if line["hook"] == "ale_batch_ready")


def test_an_observer_that_fails_is_silenced_after_three_errors_and_the_run_completes(
    witnessed: Callable[..., list[dict[str, Any]]],
) -> None:
    seen = witnessed(SCRIPTED, "rl=null", "eval.episodes=6", fail_in="ale_model_called")
    assert sum(line["hook"] == "ale_model_called" for line in seen) == 3
    assert "ale_run_finished" not in {line["hook"] for line in seen}
    assert seen[-1]["hook"] == "close", "what was started is closed all the same"
    assert "Only its veto hooks are called from now on." in witnessed.stderr  # type: ignore[attr-defined]


def test_a_command_is_refused_every_time_where_its_veto_fails(witnessed: Callable[..., list[dict[str, Any]]]) -> None:
    answers = json.dumps([SHELL, *['<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call>'] * 7])
    seen = witnessed(
        SCRIPTED,
        "rl=null",
        "eval.episodes=4",
        "rollout.concurrency=1",
        f"engine.answers={answers}",
        fail_in="ale_before_exec",
    )
    assert sum(line["hook"] == "ale_before_exec" for line in seen) == 4
    ends = [line for line in seen if line["hook"] == "ale_exec_finished" and line["by"] == "agent"]
    assert [line["code"] for line in ends] == [126] * 4
    assert not any(line.get("by") == "agent" for line in seen if line["hook"] == "ale_exec_started")


def test_a_rollout_stays_out_of_training_every_time_where_its_veto_fails(
    witnessed: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    veto = "ale_filter_trajectory"
    seen = witnessed(SCRIPTED, "--only", "rollout", "rl.steps=1", "rollout.max_resamples=0", fail_in=veto, code=1)
    assert sum(line["hook"] == veto for line in seen) == 4
    (folder,) = (tmp_path / "runs").iterdir()
    with RunStore.open(folder) as store:
        assert all("the observer 'witness' failed" in (t.rejected or "") for t in store.trajectories())
    assert "No rollout of step 1 can be trusted: 4 x the observer 'witness' failed" in witnessed.stderr  # type: ignore[attr-defined]


FIRST_TRIES = """
from ale.specs.events import Observer, hookimpl

class FirstTries(Observer):
    api_version = ">=1.0,<1.2"
    @hookimpl
    def ale_filter_trajectory(self, trajectory):
        seen, self.seen = getattr(self, "seen", set()), getattr(self, "seen", set()) | {trajectory.group}
        return None if trajectory.group in seen else "the first try"
"""


def test_a_demonstration_whose_first_try_was_refused_is_demonstrated_again(
    run_file: RunFile, install: Install, tmp_path: Path
) -> None:
    install("first-tries", FIRST_TRIES, kind="hooks", name="first_tries", target="first_tries:FirstTries")
    summary_of(
        ale(
            "run",
            run_file(TINY),
            "rl=null",
            "eval.episodes=2",
            "sft.steps=1",
            "sft.demonstrations.count=4",
            "observers=[first_tries]",
        )
    )
    (folder,) = (tmp_path / "runs").iterdir()
    with RunStore.open(folder) as store:
        tries: dict[str, list[Any]] = {}
        for t in store.trajectories("stage = 'demonstrations'"):
            tries.setdefault(t.group, []).append((t.rejected, t.passed, len(t.chunks)))
    assert len(tries) == 4
    for first, second in tries.values():
        assert first[0] == "the first try"
        assert second == (None, *first[1:]), "the second try does the same as the first one"


def test_a_veto_is_not_asked_about_the_episodes_of_an_evaluation(
    witnessed: Callable[..., list[dict[str, Any]]],
) -> None:
    seen = witnessed(SCRIPTED, "rl=null", "eval.episodes=3", fail_in="ale_filter_trajectory")
    hooks = [line["hook"] for line in seen]
    assert "ale_filter_trajectory" not in hooks
    assert hooks.count("ale_trajectory_finished") == 3


def test_an_observer_that_cannot_start_refuses_the_run_by_name(witnessed: Callable[..., list[dict[str, Any]]]) -> None:
    seen = witnessed(SCRIPTED, "rl=null", "eval.episodes=2", fail_in="start", code=2)
    assert [line["hook"] for line in seen] == ["start", "close"]
    assert "error: observers.0: the observer 'witness' cannot start: RuntimeError: spam." in witnessed.stderr  # type: ignore[attr-defined]


def test_an_observer_that_cannot_close_does_not_spoil_the_run(witnessed: Callable[..., list[dict[str, Any]]]) -> None:
    witnessed(SCRIPTED, "rl=null", "eval.episodes=2", fail_in="close")
    assert "the observer 'witness' failed in close: RuntimeError: spam" in witnessed.stderr  # type: ignore[attr-defined]


def test_a_run_hears_only_the_observers_that_it_names(run_file: RunFile, install: Install) -> None:
    install("the-bomb", "import os; os._exit(3)", kind="hooks", name="bomb", target="the_bomb")
    summary_of(forked_ale("run", run_file(SCRIPTED), "rl=null", "eval.episodes=2"))


@pytest.mark.parametrize(
    ("observers", "sentence"),
    [
        ("[tensorbord]", "observers.0: there is no observer 'tensorbord'. Did you mean 'tensorboard'?"),
        ("[tensorboard, {use: audit_log, pth: x}]", "observers.1.pth: there is no such key. Did you mean 'path'?"),
        ("[{folder: x}]", "observers.0.use: this key is missing"),
        ("audit_log", "observers: "),
        ("[3]", "observers.0: must be the name of an observer"),
    ],
)
def test_a_mistake_in_the_observers_is_a_sentence_with_its_path(
    run_file: RunFile, observers: str, sentence: str
) -> None:
    done = ale("config", "validate", run_file(SCRIPTED), f"observers={observers}")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ale_plugins_leaves_observers_out(run_file: RunFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALE_PLUGINS", "tensorboard")
    done = ale("run", run_file(SCRIPTED), "rl=null", "eval.episodes=2", "observers=[audit_log, tensorboard]")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1]).parent
    assert "ALE_PLUGINS leaves the observer 'audit_log' out of this run" in done.stderr
    assert not (folder / "audit.jsonl").exists()
    assert (folder / "tensorboard").is_dir()


def test_the_audit_log_holds_every_command_and_every_model_call_of_the_run(run_file: RunFile) -> None:
    answers = json.dumps([SHELL, '<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call>'])
    done = ale(
        "run", run_file(SCRIPTED), "rl=null", "eval.episodes=3", "observers=[audit_log]", f"engine.answers={answers}"
    )
    folder = Path(done.stdout.splitlines()[-1]).parent
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    assert lines[0]["event"] == "run_started"
    assert lines[-1]["event"] == "run_finished"
    assert {line["run"] for line in lines} == {summary_of(done)["run_id"]}
    with RunStore.open(folder) as store:
        trajectories = list(store.trajectories())
    for t in trajectories:
        mine = [line for line in lines if line.get("episode") == t.id]
        assert sum(line["event"] == "model_called" for line in mine) == len(t.chunks)
        commands = [line["command"] for line in mine if line["event"] == "exec_requested"]
        assert commands == [o.arguments["command"] for o in t.observations if o.tool == "shell"]
        events = [line["event"] for line in mine if line.get("by") == "agent"]
        assert events == ["exec_requested", "exec_started", "exec_finished"]
        rewards = [line for line in mine if line.get("by") == "reward"]
        assert rewards
        assert any(line.get("stdin") for line in rewards), "what a command reads is part of it"
    assert len(trajectories) == 3


def test_the_mixed_example_runs_and_counts_success_by_what_was_selected(tmp_path: Path) -> None:
    result = run(REPOSITORY / "examples" / "mixed.yaml", f"run_dir={tmp_path}", quiet=True)
    made = [(t.tags, dict(t.made_with)) for t in result.trajectories()]
    metrics = {m.name for m in result.metrics("eval")}
    assert len(made) == 16
    for tags, choice in made:
        assert choice["sandbox"] == ("local.0" if "hand-written" in tags else "local.1")
    assert sum("hand-written" in tags for tags, _ in made) == 4, "one of four by weight"
    assert {choice["scaffold"] for _, choice in made} == {"iflow.0", "iflow.1"}
    assert {"success/sandbox:local.0", "success/scaffold:iflow.1"} <= metrics
    assert (result.folder / "audit.jsonl").is_file()
