"""What ALE tells a user to install exists: in errors, in the docs, and in the table that errors are made from."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from declared_packages import ROOT, our_packages
from install_lines import INSTALL, NAMES, REQUIRED, arguments_of, documents, install_lines, mistake_in, sources, texts

from ale.cli import commands
from ale.errors import ConfigError, PluginError
from ale.registry.drivers import find_plugin
from ale.registry.packages import find_command, our_plugins
from ale.registry.packages import our_packages as table_of_packages
from ale.specs.kinds import ALL_KINDS, plugin_noun
from ale_train.migration.table import plugin_names, rows

EXAMPLES = {"ale-plugin-crate", "ale-plugin-nim"}
"""Packages that a reader of the docs writes."""
OTHER_NAMES = {
    *("ale-base", "ale-checkpoint", "ale-python", "ale-snapshot"),  # images
    *("ale-cluster", "ale-run", "ale-runs"),  # objects of Kubernetes, a folder
    *("ale-agents", "ale-agents-base"),  # /opt/ale-agents, and an image in an example
    *("ale-local", "ale-podman", "ale-plugin", "ale-rock"),  # folders, a socket, the manifest, a user
    "ale-py",  # the Arcade Learning Environment
}
"""What else begins with `ale-` in the docs."""
HISTORY = "CHANGELOG.md"


def test_the_table_of_packages_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts/write_package_table.py"))
    wanted = script["to_text"](script["make_table"]())
    assert script["TABLE"].read_text() == wanted, "run `make package-table`"
    assert set(table_of_packages()) == set(our_packages())


@pytest.mark.parametrize(
    ("kind", "name", "package"),
    [
        ("sandbox", "docker", "ale-plugin-docker"),
        ("engine", "torch", "ale-plugin-engine-torch"),
        ("trainer", "torch", "ale-plugin-trainer-torch"),
        ("hooks", "print", "ale-train"),
        ("reward", "math", "ale-plugin-rewards"),
    ],
)
def test_a_plugin_of_ours_that_is_not_installed_names_its_package(
    kind: str, name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ale.registry.drivers.list_plugins", lambda kind: [])
    with pytest.raises(ConfigError) as refusal:
        find_plugin(kind, name)
    mend = f"It comes with {package}: `pip install {package}`. Installed: none."
    assert str(refusal.value) == f"{kind}: there is no {plugin_noun(kind)} '{name}'. {mend}"


def test_a_misspelt_plugin_of_ours_that_is_not_installed_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ale.registry.drivers.list_plugins", lambda kind: [])
    with pytest.raises(ConfigError, match=r"'dokcer'\. Did you mean 'docker'\?"):
        find_plugin("sandbox", "dokcer")


WORDS_THAT_NOBODY_KNOWS = ("crate_digger", "crate-digger", "my.plugin", "ROCKLET2", "x", "dockr", "torhc", "some:thing")


def hints_about_plugins() -> Iterator[tuple[str, str, str]]:
    """Yield every hint about a plugin that is not installed: its kind, the word, and the whole sentence."""
    for kind in ALL_KINDS:
        for word in (*plugin_names().get(kind, {}), *our_plugins(kind), *WORDS_THAT_NOBODY_KNOWS):
            with suppress(PluginError):  # a module of this name
                try:
                    find_plugin(kind, word)
                except ConfigError as refusal:
                    yield kind, word, str(refusal)


@pytest.mark.parametrize("installed", [True, False], ids=["all is installed", "nothing is installed"])
def test_no_hint_about_a_plugin_names_a_package_that_does_not_exist(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not installed:
        monkeypatch.setattr("ale.registry.drivers.list_plugins", lambda kind: [])
    hints = list(hints_about_plugins())
    assert len(hints) > 150
    wrong = {
        f"{kind} {word}: {argument}: {mistake}"
        for kind, word, sentence in hints
        for match in INSTALL.findall(sentence)
        for argument in arguments_of(match)
        if (mistake := mistake_in(argument))
    }
    wrong |= {
        f"{kind} {word}: {name}"
        for kind, word, sentence in hints
        for name in NAMES.findall(sentence)
        if name not in our_packages()
    }
    assert not wrong


def test_hints_about_keys_and_commands_name_packages_that_exist() -> None:
    texts_of_keys = [text for row in rows() for text in (row.say, *row.values.values())]
    texts_of_commands = [commands.explain_unknown([word]) for word in ("rnu", "serve", "tasks", "docker", "")]
    for text in (*texts_of_keys, *texts_of_commands):
        assert {*NAMES.findall(text)} <= {*our_packages()}, text


def test_hints_about_sandboxes_name_rock_and_plugins_that_exist() -> None:
    for word, sentence in plugin_names()["sandbox"].items():
        assert re.search(r"\brock\b", sentence), word
    for kind, names in plugin_names().items():
        for word, sentence in names.items():
            uses = re.findall(r"\{use: (\w+)", sentence)
            assert {*uses} <= {*our_plugins(kind)}, (kind, word)


def test_every_kind_of_the_table_is_one_that_there_is() -> None:
    assert {kind for kind in ALL_KINDS if our_plugins(kind)} <= set(ALL_KINDS)
    assert our_plugins("no such kind") == {}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["report", "runs/a"], "`ale report` comes with ale-plugin-report, which is not installed: "),
        (["run", "run.yaml"], "`ale run` comes with ale-train, which is not installed: `pip install ale-train`."),
        (["config", "show"], "`ale config show` comes with ale-train"),
        (["rnu"], "`pip install 'ale-core[all]'` has all of ours."),
        ([], "`pip install 'ale-core[all]'` has all of ours."),
    ],
)
def test_a_command_that_is_not_installed_names_its_package(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_installed_commands", lambda: iter(()))
    assert sentence in commands.explain_unknown(words)


def test_a_word_after_an_installed_command_is_not_explained_by_its_package() -> None:
    assert find_command(["sandbox", "lss"]) == ("sandbox", "ale-sandbox")
    assert "comes with" not in commands.explain_unknown(["sandbox", "lss"])


@pytest.mark.parametrize("paths", [documents(), sources()], ids=["docs", "sources"])
def test_what_is_to_be_installed_exists(paths: list[Path]) -> None:
    lines = list(install_lines(paths))
    assert len(lines) > 10
    wrong = {
        f"{line.place}: {argument}: {mistake}"
        for line in lines
        for argument in line.arguments
        if argument not in EXAMPLES and (mistake := mistake_in(argument))
    }
    assert not wrong


@pytest.mark.parametrize(
    ("paths", "names", "others"),
    [(documents(), NAMES, OTHER_NAMES), (sources(), REQUIRED, set[str]())],
    ids=["docs", "sources"],
)
def test_every_package_of_ours_that_a_text_names_exists(
    paths: list[Path], names: re.Pattern[str], others: set[str]
) -> None:
    known = {*our_packages(), *EXAMPLES, *others}
    unknown = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in paths
        for text in texts(path)
        for name in names.findall(text)
        if path.name != HISTORY and name not in known
    }
    assert not unknown
