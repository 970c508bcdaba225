"""Every plugin of ours keeps its contract, in each of its usual settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from kit import assert_keeps_contract, run_kit_here

from ale.registry.installed import list_plugins

SETTINGS = {
    "sandbox:local": ["", "isolation: none"],
    "engine:scripted": ["answers: [hello]", "{random: true, random_tokens: 8}"],
    "engine:torch": ["threads: 1"],
    "trainer:torch": ["threads: 1"],
    "algorithm:ipa": [
        "",
        "{level: token, experts: {}}",
        "{level: trajectory, return_signal: group_centered, experts: {demonstrate: 2}}",
    ],
    "algorithm:pg": ["", "{variant: topr_token_mask}", "{variant: gspo}"],
    "scaffold:iflow": [""],
    "scaffold:cli": [yaml.safe_dump({"command": [sys.executable, str(Path(__file__).with_name("small_agent.py"))]})],
}
WITHOUT_TOKENS = {"engine:upstream"}
"""Answers with messages of another server's model: the suites of engines ask for tokens (libs/endpoint tests it)."""
IN_CONTAINERS = {"sandbox:docker", "sandbox:podman"}
"""They have files of their own, which run side by side."""
OURS = sorted({f"{i.kind}:{i.name}" for i in list_plugins() if i.package.startswith("ale-")} - WITHOUT_TOKENS)
CASES = [
    pytest.param(
        plugin,
        settings,
        id=f"{plugin}-{settings.splitlines()[0] if settings else ''}".rstrip("-"),
        marks=pytest.mark.bwrap,
    )
    for plugin in OURS
    if plugin not in IN_CONTAINERS
    for settings in SETTINGS.get(plugin, [""])
]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("plugin", "settings"), CASES)
def test_it_keeps_its_contract(plugin: str, settings: str, tmp_path: Path) -> None:
    assert_keeps_contract(plugin, settings, tmp_path)


def test_every_kind_has_a_plugin_that_is_checked() -> None:
    from ale.specs.kinds import ALL_KINDS

    assert {plugin.partition(":")[0] for plugin in OURS} == set(ALL_KINDS)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--ale-plugin", "sandbox"], "--ale-plugin takes KIND:NAME, such as sandbox:docker, not 'sandbox'."),
        (["--ale-plugin", "sandbox:locl"], "sandbox: there is no sandbox plugin 'locl'. Did you mean 'local'?"),
        (["--ale-plugin", "sandbx:local"], "There is no kind of plugin 'sandbx'. Did you mean 'sandbox'?"),
        (["--ale-plugin", "sandbox:local", "--ale-config", "gone.yaml"], "--ale-config gone.yaml cannot be read"),
        (["--ale-plugin", "engine:scripted"], "engine: give exactly one of answers, function, recording and random"),
        (["--ale-plugin", ""], "Which plugin is to be tested? Add --ale-plugin KIND:NAME"),
    ],
)
def test_a_mistake_in_the_options_is_a_sentence(options: list[str], sentence: str, tmp_path: Path) -> None:
    done = run_kit_here(tmp_path, options[1], *options[2:])
    assert done.returncode == 4
    assert sentence in done.stdout
    assert "Traceback" not in done.stdout


def test_the_suites_can_be_imported_into_an_authors_own_tests(tmp_path: Path) -> None:
    (tmp_path / "test_contract.py").write_text("from ale_testing.test_tasks import *\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path]
    command += ["--ale-plugin", "tasks:bash", tmp_path]
    done = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "9 passed" in done.stdout
