"""Runs and evaluations from Python."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ale_train
from ale.errors import ConfigError
from ale.trajectory import Trajectory
from ale_train.python_api import Result

FINISH = '<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call>'
SCRIPTED: Mapping[str, Any] = {
    "name": "scripted",
    "tasks": {"use": "bash", "families": ("write", "find")},
    "engine": {"use": "scripted", "answers": [FINISH]},
    "trainer": None,
    "eval": {"episodes": 4},
}


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """A run that evaluates a scripted engine, as a mapping."""
    return {**SCRIPTED, "run_dir": tmp_path / "runs"}


def test_a_mapping_is_a_run_file(config: dict[str, Any], tmp_path: Path) -> None:
    result = ale_train.run(config, "eval.n=2", "observers=[report]", out=tmp_path / "run", quiet=True)
    assert result.folder == tmp_path / "run"
    assert result.summary["status"] == "completed"
    assert (result.evaluations["of_the_policy"]["episodes"], result.evaluations["of_the_policy"]["tasks"]) == (4, 2)
    rollouts = result.trajectories("eval")
    assert len(rollouts) == 4
    assert all(isinstance(t, Trajectory) for t in rollouts)
    assert result.trajectories("rl") == []
    assert {m.name for m in result.metrics("eval")} >= {"success", "pass@2", "reward"}
    assert (tmp_path / "run" / "report.html").is_file(), "the observer `report` has written its page"
    assert ale_train.read_run(str(tmp_path / "run")) == result


def test_yaml_text_and_a_path_are_run_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text("tasks: bash\ntrainer: null\neval: {episodes: 2}\n")
    text = "include: base.yaml\nengine: {use: scripted, random: true}\n"
    Path("run.yaml").write_text(text)
    for number, config in enumerate((text, "run.yaml", Path("run.yaml"))):
        result = ale_train.run(config, "rollout.max_calls=1", out=f"run{number}", quiet=True)
        assert result.evaluations["of_the_policy"]["episodes"] == 2


def test_inside_a_running_event_loop_it_works_too(config: dict[str, Any], tmp_path: Path) -> None:
    """As in a notebook, where a cell runs in the loop."""

    async def cell() -> tuple[Result, Result]:
        blocking = ale_train.run(config, out=tmp_path / "a", quiet=True)
        return blocking, await ale_train.run_async(config, out=tmp_path / "b", quiet=True)

    before = threading.active_count()
    blocking, awaited = asyncio.run(cell())
    assert blocking.evaluations.keys() == awaited.evaluations.keys() == {"of_the_policy"}
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("nowhere.yaml", "There is no run file nowhere.yaml"),
        ("- a\n- b\n", "A run file holds keys and values"),
        ({**SCRIPTED, "sed": 3}, "sed: there is no such key"),
        ({"engine": "torch"}, "tasks: this key is missing"),
        (
            {**SCRIPTED, "reward": {"use": "python", "function": len}},
            r"reward: the parameter .obj. of len of builtins cannot be given by its name",
        ),
        ({**SCRIPTED, "observers": [{1}]}, r"observers.0: a run file cannot hold \{1\}\."),
    ],
)
def test_a_mistake_is_the_sentence_of_the_command_line(config: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ale_train.run(config)


def test_arguments_that_are_no_settings_are_sentences() -> None:
    with pytest.raises(ConfigError, match=r"An override is a text such as 'rl.steps=3', not {'seed': 3}"):
        ale_train.run(SCRIPTED, {"seed": 3})
    with pytest.raises(ConfigError, match=r"--only takes 'rollout' or 'train', not 'half'"):
        ale_train.run(SCRIPTED, only="half")


def test_numbers_of_numpy_are_numbers(config: dict[str, Any], tmp_path: Path) -> None:
    made = ale_train.run({**config, "seed": np.int64(7)}, out=tmp_path / "run", quiet=True)
    assert made.summary["seed"] == 7


def test_a_result_of_a_run_is_judged_again(
    config: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    judged = ale_train.evaluate(config, episodes=3, out=tmp_path / "judged")
    assert judged.evaluations["engine scripted"]["episodes"] == 3
    assert "held-out success, engine scripted: 0.000" in capfd.readouterr().err
    with pytest.raises(ConfigError, match="holds no policy"):
        ale_train.evaluate(judged)
    with pytest.raises(ConfigError, match="is not a run folder"):
        ale_train.read_run(tmp_path)


def test_data_frames_have_a_row_a_step_and_a_row_a_rollout(config: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    result = ale_train.run(config, out=tmp_path / "run", quiet=True)
    metrics = result.metrics().to_pandas()
    assert metrics[["stage", "step", "success"]].to_numpy().tolist() == [["eval", 0, 0.0]]
    rollouts = result.trajectories().to_pandas()
    assert len(rollouts) == 4
    assert rollouts["passed"].tolist() == [False] * 4
    assert set(rollouts.groupby("task_id")["reward"].mean()) == {0.0}
    assert list(result.trajectories("rl").to_pandas().columns)[:2] == ["id", "stage"]


def test_without_pandas_a_sentence_says_what_to_install(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = ale_train.run(config, out=tmp_path / "run", quiet=True)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="`pip install pandas`"):
        result.metrics().to_pandas()


def test_importing_the_package_imports_next_to_nothing() -> None:
    source = (
        "import sys, ale_train; names = ('pydantic', 'torch', 'asyncio', 'ale_train.python_api'); "
        "print(*(name for name in names if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    with pytest.raises(AttributeError, match="module 'ale_train' has no attribute 'nothing'"):
        _ = ale_train.nothing


NOTEBOOK = """
import asyncio, json, os, signal, sys, threading, time
from pathlib import Path
import ale_train

def press_ctrl_c(folder):
    while not (folder / "run.db").exists():
        time.sleep(0.01)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)

# A shell that starts a command in the background lets it ignore SIGINT, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def cell(folder):
    threading.Thread(target=press_ctrl_c, args=[folder]).start()
    ale_train.run(json.loads(sys.argv[2]), "eval.episodes=3000", out=folder, quiet=True)

try:
    asyncio.new_event_loop().run_until_complete(cell(Path(sys.argv[1])))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_interrupting_a_notebook_ends_the_run_as_ctrl_c_does(config: dict[str, Any], tmp_path: Path) -> None:
    arguments = [str(tmp_path / "run"), json.dumps(config, default=str)]
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == ["interrupted"]
    assert ale_train.read_run(tmp_path / "run").summary["status"] == "interrupted"


def test_a_run_goes_on_only_in_its_own_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="resume goes on in the run folder that config names"):
        ale_train.run(tmp_path, resume=True, out=tmp_path / "other")
    with pytest.raises(ConfigError, match="resume goes on in the run folder that config names"):
        ale_train.run({"tasks": "bash"}, resume=True)
