"""Files of the user's in run data: their paths, the run's copies, and the same classes in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ale.config.references import resolve
from ale_train.config.load import LoadedConfig, load_run_config
from ale_train.config.user_files import RunFiles, UserFile, changed_files, plan_copies, resolve_files, resolve_use

REWARD = """
from ale.specs.driver import Driver, PluginConfig
from ale.specs.reward import Reward
from pydantic import Field

class Fixed(Driver, Reward):
    class Config(PluginConfig):
        value: float = Field(1.0, description="The score.")
    @classmethod
    def uses_sandbox(cls, config):
        return False
    async def score(self, task, sandbox, trajectory): ...
"""
MINIMAL = {"tasks": "bash", "engine": {"use": "scripted", "answers": ["x"]}, "trainer": None, "algorithm": "pg"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a class in a file."""
    (tmp_path / "mine.py").write_text(REWARD)
    return tmp_path


def load(folder: Path, **data: Any) -> LoadedConfig:
    """Load a run file of this data in the folder."""
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, **data}))
    return load_run_config(path)


def plan(loaded: LoadedConfig, run: Path) -> RunFiles:
    """Plan and write what a run folder keeps, as a run does."""
    made = plan_copies(loaded.values, loaded.files, run)
    run.mkdir(exist_ok=True)
    made.write_copies(run)
    (run / "config.yaml").write_text(made.config)
    return made


USES = st.sampled_from(
    ["pg", "ale-plugin-pg:pg", "a.b:C", "./x.py:C", "../x.py:C", "d/x.py", "/abs/x.py:C", "~/x.py:C"]
)
SETTINGS = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=5), st.fixed_dictionaries({"use": USES})),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
PLACES = st.fixed_dictionaries(
    {},
    optional={
        "algorithm": st.one_of(USES, SETTINGS),
        "tasks": st.one_of(USES, st.fixed_dictionaries({"mix": st.lists(st.one_of(USES, SETTINGS), max_size=3)})),
        "observers": st.one_of(st.lists(st.one_of(USES, SETTINGS), max_size=3), USES),
        "eval": st.one_of(st.none(), st.fixed_dictionaries({"sets": SETTINGS})),
        "sft": SETTINGS,
        "session": SETTINGS,
    },
)


@given(PLACES)
def test_paths_are_made_absolute_once_in_data_of_any_shape(data: dict[str, Any]) -> None:
    resolve_files(data, Path("/base"))
    once = json.dumps(data)
    for text in ('{"use": "./x.py:C"', '{"use": "../x.py:C"', '{"use": "~/x.py:C"', '{"use": "d/x.py"'):
        assert text not in once
    resolve_files(data, Path("/other"))
    assert json.dumps(data) == once


def test_what_names_no_file_stays_as_it_is() -> None:
    for use in ("pg", "a.b:C", "${oc.env:HOME}/x.py:C", "x.pyc:C", "/abs/x.py:C"):
        assert resolve_use(use, Path("/base")) == use
    assert resolve_use("./a/../x.py", Path("/base")) == "/base/x.py"


def test_a_copy_is_named_relative_to_its_config_and_loads_the_same_settings(folder: Path, tmp_path: Path) -> None:
    loaded = load(folder, reward={"select": [{"when": "a", "use": "mine.py:Fixed", "value": 2}, "./mine.py:Fixed"]})
    plan(loaded, tmp_path / "run")
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert [entry if isinstance(entry, str) else entry["use"] for entry in written["reward"]["select"]] == [
        "files/mine.py:Fixed",
        "files/mine.py:Fixed",
    ]
    again = load_run_config(tmp_path / "run" / "config.yaml")
    assert (
        plan_copies(again.values, again.files, tmp_path / "run").config
        == (tmp_path / "run" / "config.yaml").read_text()
    ), "a run that goes on has the same text"


def test_the_text_that_was_imported_is_kept_and_not_what_the_file_has_become(folder: Path, tmp_path: Path) -> None:
    loaded = load(folder, reward="mine.py:Fixed")
    (folder / "mine.py").write_text("changed = True\n")
    plan(loaded, tmp_path / "run")
    assert (tmp_path / "run" / "files" / "mine.py").read_text() == REWARD
    assert changed_files(tmp_path / "run") == [str(folder / "mine.py")]
    (folder / "mine.py").write_text(REWARD)
    assert changed_files(tmp_path / "run") == []


def test_another_text_of_a_file_gets_a_copy_of_its_own(tmp_path: Path) -> None:
    origin, values = tmp_path / "x.py", resolve({"reward": {"use": f"{tmp_path}/x.py:C"}}, "test")
    first = plan_copies(values, (UserFile(origin, b"1"),), tmp_path / "run")
    (tmp_path / "run").mkdir()
    first.write_copies(tmp_path / "run")
    assert plan_copies(values, (UserFile(origin, b"1"),), tmp_path / "run").config == first.config
    second = plan_copies(values, (UserFile(origin, b"2"),), tmp_path / "run")
    assert (first.config, second.config) == ("reward:\n  use: files/x.py:C\n", "reward:\n  use: files/2/x.py:C\n")


def test_what_a_file_imports_from_beside_it_is_kept_with_its_folders(tmp_path: Path) -> None:
    for name, text in {
        "first_of_this_test.py": "import second_of_this_test.inner\n" + REWARD,
        "second_of_this_test/__init__.py": "",
        "second_of_this_test/inner.py": "def late():\n    import third_of_this_test\n",
        "third_of_this_test.py": "import json, yaml\n",
        "unused_in_this_test.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    made = plan(load(tmp_path, reward="first_of_this_test.py:Fixed"), tmp_path / "run")
    assert sorted(made.copies) == [
        "first_of_this_test.py",
        "second_of_this_test/__init__.py",
        "second_of_this_test/inner.py",
        "third_of_this_test.py",
    ]


def test_of_a_module_the_text_is_kept_and_the_name_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "module_of_this_test.py").write_text(REWARD)
    monkeypatch.chdir(folder)
    plan(load(folder, reward="module_of_this_test:Fixed"), folder / "run")
    assert yaml.safe_load((folder / "run" / "config.yaml").read_text())["reward"]["use"] == "module_of_this_test:Fixed"
    assert (folder / "run" / "files" / "modules" / "module_of_this_test.py").read_text() == REWARD
    assert changed_files(folder / "run") == []


def test_an_expression_of_the_environment_is_replaced_by_the_copy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALE_TEST_FOLDER", str(folder))
    made = plan(load(folder, reward="${oc.env:ALE_TEST_FOLDER}/mine.py:Fixed"), folder / "run")
    assert "files/mine.py:Fixed" in made.config
    assert "ALE_TEST_FOLDER" not in made.config


CHILD = """
import pickle, sys
from ale.registry.drivers import load_plugin
config = pickle.loads(sys.stdin.buffer.read())
plugin = load_plugin("reward", config.reward)
print(plugin.cls.__name__, plugin.config.value)
"""


def test_a_configuration_is_loaded_in_another_process_as_clusters_send_it(folder: Path, tmp_path: Path) -> None:
    sent = cloudpickle.dumps(load(folder, reward={"use": "mine.py:Fixed", "value": 0.25}).run)
    done = subprocess.run([sys.executable, "-c", CHILD], input=sent, cwd="/", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"Fixed 0.25\n"), done.stderr.decode()
