"""The registry against plugins of strangers: throw-away packages, good and bad, on a path of the test's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_packages import REWARD, Install

from ale.errors import ConfigError, PluginError
from ale.registry.drivers import build_driver, load_driver_class
from ale.registry.installed import list_plugins
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext


def refusal(name: str, kind: str = "reward") -> str:
    """The sentence that refuses a plugin; one line of text that names where it was asked for."""
    with pytest.raises((ConfigError, PluginError)) as caught:
        load_driver_class(kind, name, "reward")
    assert str(caught.value).startswith("reward: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_strangers_plugin_is_listed_loaded_and_built(install: Install) -> None:
    about = {"kind": "reward", "name": "fixed", "summary": "Always one.", "capabilities": ["partial"]}
    install("far-away", manifest={"api_version": ">=1.0,<1.4", "plugins": [about]})
    (info,) = [i for i in list_plugins("reward") if i.name == "fixed"]
    assert (info.package, info.version, info.status) == ("far-away", "2.1", "ok")
    assert (info.summary, info.capabilities, info.api_version) == ("Always one.", ("partial",), ">=1.0,<1.4")
    driver = build_driver("reward", PluginChoice(use="fixed", settings={"value": 0.5}), DriverContext())
    assert driver.config.value == 0.5


def test_listing_imports_no_plugin(install: Install) -> None:
    install("far-away", "raise SystemExit('imported')")
    assert "fixed" in {i.name for i in list_plugins("reward")}
    assert "far_away" not in sys.modules


@pytest.mark.parametrize(
    "manifest",
    [
        "{",
        "[]",
        '"x"',
        '{"plugins": 3}',
        '{"plugins": [3, null]}',
        "\x00",
        '{"plugins": [{"kind": "reward", "name": "fixed", "capabilities": 3}]}',
    ],
)
def test_a_manifest_that_makes_no_sense_leaves_the_summary_of_the_package(install: Install, manifest: str) -> None:
    install("far-away", manifest=manifest)
    (info,) = [i for i in list_plugins("reward") if i.name == "fixed"]
    assert (info.status, info.summary, info.capabilities) == ("ok", "From afar.", None)


def test_metadata_that_cannot_be_read_hides_only_its_own_package(install: Install, tmp_path: Path) -> None:
    install("far-away", "", name="hidden")
    next(tmp_path.glob("*.dist-info")).joinpath("entry_points.txt").write_bytes(b"[ale.reward]\n\xff\xfe = x\n")
    for name in ("nothing-1.0.dist-info", "empty-1.0.dist-info"):
        (tmp_path / name).mkdir()
    (tmp_path / "empty-1.0.dist-info" / "entry_points.txt").write_text("[ale.reward]\nx = y:z\n")
    names = {i.name for i in list_plugins("reward")}
    assert "tests" in names
    assert not {"hidden", "x"} & names


def test_an_unknown_name_says_what_is_installed_and_the_nearest() -> None:
    names = ", ".join(sorted(info.name for info in list_plugins("reward")))
    assert refusal("testz") == f"reward: there is no reward plugin 'testz'. Did you mean 'tests'? Installed: {names}."


def test_a_plugin_that_is_missing_names_the_package_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ale.registry.drivers.list_plugins", lambda kind: [])
    assert refusal("tests") == (
        "reward: there is no reward plugin 'tests'. It comes with ale-plugin-tests: `pip install ale-plugin-tests`. "
        "Installed: none."
    )


def test_a_plugin_that_nobody_knows_is_not_said_to_be_in_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ale.registry.drivers.list_plugins", lambda kind: [])
    assert refusal("crate_digger") == (
        "reward: there is no reward plugin 'crate_digger'. No package of ALE brings it; a class of yours is written "
        "./mine.py:Mine. Installed: none."
    )


def test_an_unknown_kind_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"There is no kind of plugin 'rewards'. Did you mean 'reward'\?"):
        load_driver_class("rewards", "tests")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise AssertionError", "AssertionError: AssertionError"),
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("def", "SyntaxError: "),
        ("x = 1", "has no attribute 'Fixed'"),
        ("class Odd(BaseException): pass\nraise Odd('odd')", "Odd: odd"),
    ],
)
def test_a_plugin_that_cannot_be_imported_gives_its_reason(install: Install, source: str, reason: str) -> None:
    install("far-away", source)
    sentence = refusal("fixed")
    assert "the reward plugin 'fixed' of far-away 2.1 cannot be imported" in sentence
    assert reason in sentence


def test_ctrl_c_during_an_import_is_ctrl_c(install: Install) -> None:
    install("far-away", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_driver_class("reward", "fixed")


def lenient(base: str) -> str:
    return f"""
class Inner({base}):
    x: int
class Config(PluginConfig):
    inner: list[Inner] | None = Field(None, description="A section.")
Fixed.Config = Config
"""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "Fixed = 3",
            "is no reward driver: far_away:Fixed must be a class made from ale.specs.reward.Reward and from "
            "ale.specs.driver.Driver.",
        ),
        ("from ale.specs.reward import Reward\nclass Fixed(Reward): ...", "and from ale.specs.driver.Driver."),
        ("def Fixed(): ...", "is no reward driver"),
        ("from ale.specs.sandbox import SandboxProvider as Fixed", "is no reward driver"),
        (
            "from ale.specs.driver import Driver\nfrom ale.specs.reward import Reward\n"
            "class Fixed(Driver, Reward): api_version = '>=1.0,<1.2'",
            "is unfinished: far_away:Fixed lacks score",
        ),
        (
            REWARD + "Fixed.api_version = '==2.0'",
            "was made for version ==2.0 of the plugin contracts, this ALE has 1.0",
        ),
        (
            REWARD + "def score(self, task, sandbox, trajectory): return 1.0\nFixed.score = score",
            "far_away:Fixed.score must be `async def`, as in the contract",
        ),
        (
            REWARD + "async def score(self, task): return 1.0\nFixed.score = score",
            "far_away:Fixed.score must take the contract's arguments, (self, task: 'Task', sandbox:",
        ),
        (REWARD + "Fixed.Config = dict", "far_away:Fixed.Config must be a pydantic model"),
        (
            REWARD + "import pydantic" + lenient("pydantic.BaseModel"),
            "Inner takes keys that it does not know, so that a typo would do nothing",
        ),
    ],
)
def test_a_class_that_does_not_keep_the_contract_is_refused(install: Install, source: str, reason: str) -> None:
    install("far-away", source)
    assert reason in refusal("fixed")


def test_another_version_is_refused_without_an_import(install: Install) -> None:
    install("far-away", "raise SystemExit('imported')", manifest={"api_version": "==2.0"})
    (info,) = [i for i in list_plugins("reward") if i.name == "fixed"]
    assert info.status == "incompatible"
    assert info.reason == f"It {refusal('fixed').partition('2.1 ')[2]}"
    assert "this ALE has 1.0; install a newer ALE: pip install --upgrade ale-core." in info.reason


def test_a_package_whose_module_is_gone_is_broken(install: Install) -> None:
    install("far-away", target="not_there:Fixed")
    install("no-target", name="empty", target="::")
    status = {i.name: i.status for i in list_plugins("reward")}
    assert (status["tests"], status["fixed"], status["empty"]) == ("ok", "broken", "broken")
    assert "No module named 'not_there'" in refusal("fixed")
    assert "cannot be imported" in refusal("empty")


def test_two_packages_with_one_name_are_told_apart_by_their_package(install: Install) -> None:
    install("first-one")
    install("other-one")
    assert {i.package for i in list_plugins("reward") if i.status == "shadowed"} == {"first-one", "other-one"}
    assert refusal("fixed") == (
        "reward: first-one and other-one both bring the reward plugin 'fixed'; "
        "write first-one:fixed or other-one:fixed."
    )
    assert load_driver_class("reward", "other-one:fixed").__module__ == "other_one"
    assert load_driver_class("reward", "first-one:fixed").__module__ == "first_one"
    assert "'fixed' comes from first-one, other-one." in refusal("third-one:fixed")


def test_a_duplicate_for_another_version_is_refused_too(install: Install) -> None:
    install("first-one", manifest={"api_version": "==2.0"})
    install("other-one")
    assert "made for version ==2.0" in refusal("first-one:fixed")


def test_settings_that_do_not_fit_name_their_path(install: Install) -> None:
    install("far-away")
    with pytest.raises(ConfigError) as caught:
        build_driver("reward", PluginChoice(use="fixed", settings={"valeu": 1}), DriverContext(), "some.reward")
    assert str(caught.value) == "some.reward.valeu: there is no such key. Did you mean 'value'? Valid here: value."


def test_a_driver_that_fails_while_it_is_built_is_a_sentence(install: Install) -> None:
    install("far-away", REWARD + "    def __init__(self, config, context): raise KeyError('spam')\n")
    with pytest.raises(PluginError, match="'fixed' cannot be built: KeyError: 'spam'"):
        build_driver("reward", PluginChoice(use="fixed"), DriverContext())


def test_a_validator_that_crashes_is_the_plugins_fault(install: Install) -> None:
    validator = "        @model_validator(mode='before')\n        def f(cls, v): return v['nothing']\n"
    source = "from pydantic import model_validator" + REWARD.replace("        value:", f"{validator}        value:")
    install("far-away", source)
    with pytest.raises(PluginError, match=r"reward: the checks in far_away.Fixed.Config failed: KeyError"):
        build_driver("reward", PluginChoice(use="fixed"), DriverContext())


OBSERVER = """
from ale.specs.events import hookimpl
heard = []
@hookimpl
def ale_run_finished(run_id): heard.append(run_id)
"""


def test_a_fresh_install_is_seen_by_a_running_process(install: Install) -> None:
    install("near-by", name="near")
    load_driver_class("reward", "near")
    install("far-away")
    assert load_driver_class("reward", "fixed").__name__ == "Fixed"


def test_the_import_of_the_core_loads_nothing_heavy() -> None:
    code = "import ale, ale.cli.main, ale.registry.installed, sys; print([m for m in HEAVY if m in sys.modules])"
    heavy = ("torch", "ray", "transformers", "stevedore", "omegaconf", "pydantic", "rich", "numpy", "pluggy", "yaml")
    done = subprocess.run(
        [sys.executable, "-c", f"HEAVY = {heavy}\n{code}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
