"""Rows and functions that Python code passes in memory: rewards, tasks, demonstrations, evaluations."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ale
import ale_train
from ale.errors import ConfigError
from ale_train.python_api.in_memory import RunData

ROWS = [{"prompt": f"Say ${{{number}}}.", "answer": "yes", "vector": np.arange(2)} for number in range(20)]
SAYS: Mapping[str, Any] = {
    "scaffold": "chat",
    "sandbox": None,
    "engine": {"use": "scripted", "answers": ["yes"]},
    "trainer": None,
    "eval": {"episodes": 4},
}


def half(completion: str, answer: str) -> float:
    return 0.5 * (answer in completion)


def rewards(result: ale_train.Result) -> set[float]:
    return {t.reward.value for t in result.trajectories("eval") if t.reward is not None}


def test_rows_and_a_function_are_tasks_and_a_reward(tmp_path: Path) -> None:
    seen = []

    def judge(prompt: str, vector: list[int]) -> float:
        seen.append((prompt, vector))
        return 0.25

    made = ale.run(SAYS, tasks=ROWS, reward=judge, out=tmp_path / "run", quiet=True)
    assert rewards(made) == {0.25}
    assert {prompt for prompt, _ in seen} <= {row["prompt"] for row in ROWS}, "a dollar in a row is no reference"
    assert seen[0][1] == [0, 1]
    assert len((tmp_path / "run/files/tasks.jsonl").read_text().splitlines()) == 20
    again = ale.evaluate(tmp_path / "run/config.yaml", out=tmp_path / "again", quiet=True)
    assert rewards(again) == {0.25}, "rows are in the run folder, and this process still has the function"
    other = ale.evaluate(
        tmp_path / "run/config.yaml", tasks=ROWS[:2], reward=lambda prompt: 0.125, out=tmp_path / "other", quiet=True
    )
    assert (rewards(other), other.evaluations["engine scripted"]["tasks"]) == ({0.125}, 2)


def test_a_mapping_may_hold_rows_and_functions(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    config = {
        **SAYS,
        "engine": {"use": "scripted", "function": lambda call: "yes"},
        "tasks": {"train": pandas.DataFrame([{"prompt": "a"}]), "heldout": [{"prompt": "b", "answer": "y"}]},
        "reward": {"use": "python", "functions": [half, {"function": half, "name": "twice", "weight": 3}]},
    }
    made = ale.run(config, out=tmp_path / "run", quiet=True)
    assert rewards(made) == {2.0}
    assert {t.task_id for t in made.trajectories()} == {"heldout-1"}
    assert sorted(path.name for path in (tmp_path / "run/files").glob("*.jsonl")) == [
        "tasks.files.heldout.jsonl",
        "tasks.files.train.jsonl",
    ]


def test_a_data_set_of_hugging_face_is_rows(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    one = datasets.Dataset.from_list([{"prompt": "a"}, {"prompt": "b"}])
    section = RunData(tmp_path).of_tasks(datasets.DatasetDict({"train": one, "test": one}))
    assert sorted(section["files"]) == ["test", "train"]
    assert Path(section["files"]["test"]).read_text().splitlines() == ['{"prompt": "a"}', '{"prompt": "b"}']


def test_rows_are_files_wherever_a_run_file_names_data(tmp_path: Path) -> None:
    def search(query: str) -> str:
        """Search.

        Args:
            query: The words.
        """
        return query

    chat = {"messages": [{"role": "user", "content": "a"}], "tools": [search]}
    data = RunData(tmp_path).of_config(
        {
            "tasks": {"use": "jsonl", "path": [{"question": "q"}], "columns": {"prompt": "question"}},
            "sft": {"demonstrations": {"data": [chat]}, "stages": [{"data": [chat, chat]}, {"data": ["old.jsonl"]}]},
            "cpt": {"stages": [{"data": [{"text": "t"}]}]},
            "eval": {
                "sets": {"hard": {"tasks": [{"prompt": "p"}]}, "test": {"split": "test", "tasks": [{"prompt": "p"}]}}
            },
        }
    )

    def rows(path: str) -> Any:
        return [json.loads(line) for line in Path(path).read_text().splitlines()]

    assert rows(data["tasks"]["path"]) == [{"question": "q"}]
    (demonstrations,) = data["sft"]["demonstrations"]["data"]
    (tool,) = rows(demonstrations)[0]["tools"]
    assert tool["function"]["name"] == "search"
    assert tool["function"]["parameters"]["required"] == ["query"]
    first, second = data["sft"]["stages"]
    assert (len(rows(first["data"][0])), second["data"]) == (2, ["old.jsonl"])
    assert rows(data["cpt"]["stages"][0]["data"][0]) == [{"text": "t"}]
    assert rows(data["eval"]["sets"]["hard"]["tasks"]["files"]["heldout"]) == [{"prompt": "p"}]
    assert rows(data["eval"]["sets"]["test"]["tasks"]["files"]["test"]) == [{"prompt": "p"}]


@pytest.mark.parametrize(
    ("passed", "sentence"),
    [
        ({"tasks": ["a"]}, r"tasks\.0: a row is a mapping, such as .*, not 'a'\."),
        ({"tasks": []}, r"tasks: there are no rows; give at least one\."),
        ({"tasks": 3}, r"tasks: rows are a list of mappings, not 3\."),
        ({"tasks": [{"prompt": object}]}, r"tasks\.0\.prompt: a row cannot hold <class 'object'>"),
        ({"tasks": [{"p": "a"}]}, r"The task source 'jsonl': tasks\.jsonl, line 1|Which column is the prompt\?"),
        ({"tasks": ROWS, "reward": lambda completon: 1}, r"'completon', which nothing provides"),
        ({"tasks": ROWS, "reward": type("Local", (), {})}, r"the class 'Local' is not at the top of a module"),
    ],
)
def test_what_cannot_be_used_is_a_sentence_without_a_temporary_path(
    passed: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        ale.run(SAYS, **{"reward": half, **passed}, out=tmp_path / "run", quiet=True)
    assert "ale-run-file-" not in str(raised.value)


def test_a_cluster_takes_no_functions_of_this_process(tmp_path: Path) -> None:
    pytest.importorskip("ale_ray")
    with pytest.raises(ConfigError, match=r"cluster: 'ray' runs episodes in other processes, which do not have"):
        ale.run({**SAYS, "cluster": "ray"}, tasks=ROWS, reward=lambda prompt: 1, out=tmp_path / "run", quiet=True)


SCRIPT = """
import ale
from ale.specs.driver import Driver, PluginConfig
from ale.specs.reward import Reward
from ale.trajectory import Score

def score(completion):
    return 0.75

class Whole(Driver, Reward):
    class Config(PluginConfig):
        pass

    @classmethod
    def uses_sandbox(cls, config):
        return False

    async def score(self, task, sandbox, trajectory):
        return Score(1.0, True)

config = {"scaffold": "chat", "sandbox": None, "trainer": None, "eval": {"episodes": 2},
          "engine": {"use": "scripted", "answers": ["yes"]}}
rows = [{"prompt": f"{n}"} for n in range(20)]
for number, reward in enumerate((score, Whole)):
    made = ale.run(config, tasks=rows, reward=reward, out=f"run{number}", quiet=True)
    print(made.trajectories()[0].reward.value)
"""


def test_what_a_script_defines_works_in_it_and_is_a_sentence_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0.75", "1.0"]
    for run, what in (
        ("run0", "the function 'score' is in the memory"),
        ("run1", "the class 'Whole' is in the script"),
    ):
        with pytest.raises(ConfigError, match=what):
            ale.evaluate(tmp_path / run / "config.yaml", quiet=True)
    again = ale.evaluate(tmp_path / "run0/config.yaml", reward=lambda prompt: 0.5, out=tmp_path / "again", quiet=True)
    assert rewards(again) == {0.5}, "the rows crossed over to this process, and the reward was passed again"


def test_a_function_that_other_processes_can_import_is_named_by_its_module(tmp_path: Path) -> None:
    assert RunData(tmp_path).of_reward(json.dumps) == {"use": "python", "function": "json:dumps"}
    first, second = (RunData(tmp_path).of_reward(function)["function"] for function in (lambda a: 1, lambda b: 2))
    assert first != second
    assert first.startswith("<memory>:<lambda>")


def test_public_objects_have_short_texts(tmp_path: Path) -> None:
    made = ale.run(SAYS, tasks=ROWS, reward=half, out=tmp_path / "run", quiet=True)
    for shown in (made, made.metrics(), made.trajectories(), made.trajectories()[0], made.trajectories()[0].sequences):
        assert len(repr(shown)) < 300
    assert repr(made) == f"Result({tmp_path / 'run'}, completed, of_the_policy: success 0.000)"
    assert repr(made.trajectories()) == "<4 rollouts, 4 eval>"
