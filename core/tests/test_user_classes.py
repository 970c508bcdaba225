"""Classes in files and modules of the user's: found, checked as installed plugins are, the same in every process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fake_packages import Install

from ale.errors import AleError, ConfigError
from ale.registry.drivers import FoundObserver, build_driver, find_plugin, load_driver_class
from ale.registry.hooks import Hooks
from ale.registry.user_classes import join_file, split_file
from ale.registry.user_files import import_file, text_of
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext

SOURCE = '''
from dataclasses import dataclass
from ale.specs.driver import Driver, PluginConfig
from ale.specs.events import Observer, hookimpl
from ale.specs.reward import Reward
from ale.trajectory import Score
from pydantic import BaseModel, Field

class Mine(Driver, Reward):
    """A number for every rollout."""
    class Config(PluginConfig):
        value: float = Field(0.5, description="The number.")
    async def score(self, task, sandbox, trajectory):
        return Score(self.config.value, False)

@dataclass(frozen=True)
class Point:
    x: int

class Bare(Reward):
    async def score(self, task, sandbox, trajectory): ...
class Unfinished(Driver, Reward): ...
class Sync(Mine):
    def score(self, task, sandbox, trajectory): ...
class Few(Mine):
    async def score(self, task): ...
class Loose(Mine):
    class Config(BaseModel):
        value: float = 1.0
class NoModel(Mine):
    class Config: ...
class Old(Mine):
    api_version = "==0.1"

class Counts(Observer):
    @hookimpl
    def ale_run_finished(self, run_id): heard.append(("class", run_id))

class Plain:
    @hookimpl
    def ale_run_finished(self, run_id): heard.append(("plain", run_id))

class Unmarked:
    def ale_run_finished(self, run_id): ...

class WrongArgument:
    @hookimpl
    def ale_run_finished(self, runid): ...

@hookimpl
def ale_run_finished(run_id): heard.append(("function", run_id))

heard = []
an_object = Plain()
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the user's, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def refusal(kind: str, use: str) -> str:
    """The sentence that refuses a class."""
    with pytest.raises(AleError) as caught:
        load_driver_class(kind, use, "here")
    assert str(caught.value).startswith("here: ")
    return str(caught.value).removeprefix("here: ")


@pytest.mark.parametrize("place", ["mine.py", "./mine.py", "../{folder}/mine.py", "{file}"])
def test_a_class_is_found_in_a_file_however_its_path_is_written(file: Path, place: str) -> None:
    use = f"{place.format(folder=file.parent.name, file=file)}:Mine"
    driver = build_driver("reward", PluginChoice(use=use, settings={"value": 0.25}), DriverContext())
    assert (type(driver).__name__, driver.config.value) == ("Mine", 0.25)
    assert find_plugin("reward", use).package == ""


def test_its_settings_are_checked_as_those_of_an_installed_plugin(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        build_driver("reward", PluginChoice(use=f"{file}:Mine", settings={"valeu": 1}), DriverContext(), "reward")
    assert str(caught.value) == "reward.valeu: there is no such key. Did you mean 'value'? Valid here: value."


@pytest.mark.parametrize(
    ("kind", "use", "sentence"),
    [
        ("reward", "./gone.py:Mine", "there is no file gone.py (looked for "),
        ("reward", "./mine.py:Mien", "mine.py has no class 'Mien'. Did you mean 'Mine'? It has: Mine, Point, Bare, "),
        ("reward", "./mine.py", "which class of mine.py? Write ./mine.py:NAME. It has: Mine, "),
        ("reward", "./mine.py:", "which class of mine.py? Write ./mine.py:NAME."),
        ("reward", "./mine:Mine", "no reward plugin './mine:Mine'. A class in a file is written ./mine.py:Mine."),
        ("reward", "./mine.py:heard", "heard of mine.py is no reward driver: heard must be a class made from "),
        ("reward", "./mine.py:Bare", "Bare must be a class made from ale.specs.reward.Reward and from ale.specs.d"),
        ("reward", "./mine.py:Point", "It also lacks the method score, which the contract asks for."),
        ("tasks", "./mine.py:Bare", "It also lacks the method tasks, which the contract asks for."),
        (
            "algorithm",
            "./mine.py:Mine",
            "Mine of mine.py is no algorithm driver (it is one of kind 'reward'): Mine must be a class made from "
            "ale.specs.algorithm.Algorithm",
        ),
        ("reward", "./mine.py:Unfinished", "is unfinished: Unfinished lacks score, which the contract asks for."),
        ("reward", "./mine.py:Sync", "Sync.score must be `async def`, as in the contract."),
        ("reward", "./mine.py:Few", "Few.score must take the contract's arguments, (self, task: 'Task', sandbox:"),
        ("reward", "./mine.py:Loose", "Config takes keys that it does not know, so that a typo would do nothing"),
        ("reward", "./mine.py:NoModel", "NoModel.Config must be a pydantic model"),
        ("reward", "./mine.py:Old", "was made for version ==0.1 of the plugin contracts, this ALE has 1.0. A class"),
        ("hooks", "./mine.py:Unmarked", "observes nothing: put @hookimpl above ale_run_finished"),
        ("hooks", "./mine.py:Mine", "observes nothing: mark the functions that are hooks with @hookimpl"),
        ("hooks", "./mine.py:WrongArgument", "Argument(s) {'runid'} are declared in the hookimpl but"),
        ("hooks", "./mine.py:ale_run_finish", "has no class 'ale_run_finish'. Did you mean 'ale_run_finished'?"),
        ("reward", "no_such_module_x:Mine", "plugin 'no_such_module_x:Mine', and no module 'no_such_module_x'."),
        ("reward", "mine:Mien", "the module mine has no class 'Mien'. Did you mean 'Mine'?"),
        ("rewards", "./mine.py:Mine", "There is no kind of plugin 'rewards'. Did you mean 'reward'?"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("file")
def test_what_is_not_what_the_kind_asks_is_refused_by_a_sentence(kind: str, use: str, sentence: str) -> None:
    found = refusal(kind, use)
    assert sentence in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("class Mine(:\n", "SyntaxError: "),
        ("import no_such_thing_x\n", "ModuleNotFoundError: No module named 'no_such_thing_x' (broken.py, line 1)"),
        ("\nraise SystemExit\n", "SystemExit: SystemExit (broken.py, line 2)"),
        ("def f(): raise ValueError('a\\nb')\nf()\n", "ValueError: a b (broken.py, line 1)"),
        ("class Odd(BaseException): ...\nraise Odd('x')\n", "Odd: x (broken.py, line 2)"),
    ],
)
def test_a_file_that_cannot_be_imported_names_its_error_and_line(tmp_path: Path, source: str, sentence: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    for _ in range(2):
        found = refusal("reward", f"{path}:Mine")
        assert "broken.py cannot be imported" in found
        assert sentence in found


@pytest.mark.parametrize(
    ("use", "heard"),
    [
        ("mine.py:Counts", "class"),
        ("mine.py:Plain", "plain"),
        ("mine.py:an_object", "plain"),
        ("mine.py:ale_run_finished", "function"),
        ("mine.py", "function"),
    ],
)
def test_an_observer_may_be_a_class_an_object_a_function_or_the_file(file: Path, use: str, heard: str) -> None:
    driver = build_driver("hooks", PluginChoice(use=use), DriverContext())
    hooks = Hooks([("mine", driver.observer if isinstance(driver, FoundObserver) else driver)])
    hooks.call("ale_run_finished", run_id="r", summary={})
    assert import_file(file).heard.pop() == (heard, "r")


def test_an_observer_without_settings_takes_none(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"observers.0.x: there is no such key. Valid here: no keys."):
        build_driver("hooks", PluginChoice(use=f"{file}:Plain", settings={"x": 1}), DriverContext(), "observers.0")


def test_a_package_that_brings_the_plugin_goes_before_a_module(install: Install, file: Path) -> None:
    install("apart", name="Fixed")
    install("wordy", name="word", module="wordy", target="wordy:Fixed")
    assert find_plugin("reward", "apart:Fixed").package == "apart"
    assert load_driver_class("reward", "apart:Fixed").__module__ == "apart"
    assert find_plugin("reward", "wordy:Fixed").package == ""
    assert load_driver_class("reward", "wordy:Fixed").__name__ == "Fixed", "a class of its module, that is no plugin"


def test_a_changed_file_is_another_class_and_the_same_text_is_the_same_class(file: Path) -> None:
    first = load_driver_class("reward", "mine.py:Mine")
    file.write_text(SOURCE.replace("0.5", "0.6"))  # within the second, and as long as before
    second = load_driver_class("reward", "mine.py:Mine")
    assert (first.Config().value, second.Config().value) == (0.5, 0.6)  # type: ignore[attr-defined]
    file.write_text(SOURCE)
    assert load_driver_class("reward", "mine.py:Mine") is first
    assert text_of(import_file(file)) == SOURCE.encode()
    assert not (file.parent / "__pycache__").exists()


READ = "import pickle, sys; found = pickle.loads(sys.stdin.buffer.read()); print(type(found).__name__, found)"


def unpickle(data: bytes, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Unpickle in a process that has imported nothing of ALE, elsewhere."""
    return subprocess.run([sys.executable, "-c", READ], input=data, cwd=folder, capture_output=True, check=False)


def test_objects_of_a_file_can_be_pickled_to_any_process_while_it_has_the_same_text(file: Path) -> None:
    data = pickle.dumps(import_file(file).Point(3))
    elsewhere = Path(os.sep)
    assert unpickle(data, elsewhere).stdout == b"Point Point(x=3)\n"
    file.write_text(SOURCE + "\n")
    refused = unpickle(data, elsewhere)
    assert refused.returncode == 1
    assert f"the file {file} was changed while the run goes on" in refused.stderr.decode()
    file.unlink()
    assert f"the file {file} cannot be read" in unpickle(data, elsewhere).stderr.decode()


def test_a_file_imports_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_of_this_test.py").write_text("VALUE = 7\n")
    path = tmp_path / "uses.py"
    path.write_text("from beside_of_this_test import VALUE\n")
    assert import_file(path).VALUE == 7


names = st.text(st.characters(blacklist_characters="/:\0\n", blacklist_categories=("Cs",)), min_size=1, max_size=30)


@given(names)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_of_any_name_is_imported_and_found_again(tmp_path: Path, stem: str) -> None:
    path = tmp_path / f"{stem}.py"
    try:
        path.write_text("class X: ...\n")
    except OSError:  # too long for the file system
        return
    found = import_file(path).X
    assert pickle.loads(pickle.dumps(found)) is found
    assert split_file(f"{path}:X") == (str(path), "X")


@given(st.text(max_size=30))
def test_what_names_no_file_is_left_alone_and_what_does_is_put_together_again(use: str) -> None:
    split = split_file(use)
    if split is None:
        assert not use.endswith(".py")
    else:
        assert join_file(*split) in (use, use.removesuffix(":"))
