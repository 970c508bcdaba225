"""These tests give a run file a section that no package, two packages or a broken package defines."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from ale.config.preflight import preflight
from ale.config.run import RunConfig
from ale.errors import AleError, ConfigError, PluginError
from ale.registry import package_field
from ale.registry.package_field import GROUP
from ale.registry.validation import validate
from ale_config_tools import describe_keys

MINIMAL = {"tasks": "bash", "engine": {"use": "scripted", "answers": ["hi"]}, "trainer": None}
SECTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "cpt": ({"cpt": {"stages": []}}, "ale-supervised"),
    "sft": ({"sft": {}}, "ale-supervised"),
    "rl": ({"rl": {}}, "ale-rl"),
    "eval": ({"eval": {"episodes": 1}}, "ale-evaluation"),
    "pool": ({"pool": {"warm": 1}}, "ale-sandbox-pool"),
    "model.scratch": ({"model": {"scratch": {"layers": 2}}}, "ale-tiny-models"),
}


def installed(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    """Only these sections are brought: name and target of each."""
    found = tuple(EntryPoint(name, target, GROUP) for name, target in entries)
    monkeypatch.setattr(package_field, "read_entries", lambda group, state: found)


@pytest.mark.parametrize("path", SECTIONS)
def test_a_section_that_no_package_brings_is_refused_with_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    installed(monkeypatch)
    section, package = SECTIONS[path]
    with pytest.raises(ConfigError, match=f"^{path}: no installed package brings this; `pip install {package}`"):
        validate(RunConfig, {**MINIMAL, **section})


def test_without_any_of_these_packages_a_run_without_their_sections_is_as_good_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch)
    run = validate(RunConfig, {**MINIMAL, "sft": None, "cpt": None})
    assert (run.stages, run.trains, run.pool, run.eval) == ({}, False, None, None)
    assert {"seed", "rollout.concurrency"} <= {row[0] for row in describe_keys(RunConfig)}
    RunConfig.model_json_schema()


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ([("sft", "one:A"), ("sft", "two:B")], "sft: one:A and two:B both bring this section; uninstall the package"),
        ([("sft", "no_such_module:A")], "sft: no_such_module:A cannot be imported"),
        ([("sft", "json:dumps")], "sft: json:dumps must be a class made from ale.specs.package_sections.StageSection"),
    ],
)
def test_a_section_that_is_brought_twice_or_by_a_broken_package_is_a_sentence_where_a_run_has_it(
    monkeypatch: pytest.MonkeyPatch, entries: list[tuple[str, str]], sentence: str
) -> None:
    installed(monkeypatch, *entries)
    with pytest.raises(PluginError, match=sentence):
        validate(RunConfig, {**MINIMAL, "sft": {}})
    validate(RunConfig, MINIMAL)
    describe_keys(RunConfig)


def test_a_mix_of_tasks_wants_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    run = validate(RunConfig, {**MINIMAL, "tasks": {"mix": ["bash", "bash"]}})
    installed(monkeypatch)
    with pytest.raises(ConfigError, match=r"^tasks\.mix: no installed package .*`pip install ale-task-mixture`"):
        preflight(run)


def test_half_of_the_loop_wants_the_package_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(ConfigError, match=r"^rl: no installed package brings this; `pip install ale-rl` does\.$"):
        preflight(validate(RunConfig, MINIMAL), "rollout")
    preflight(validate(RunConfig, MINIMAL))


def test_the_pool_is_there_where_its_package_is_unless_a_run_is_without() -> None:
    assert validate(RunConfig, MINIMAL).pool == validate(RunConfig, {**MINIMAL, "pool": {}}).pool is not None
    assert validate(RunConfig, {**MINIMAL, "pool": None}).pool is None


def test_a_section_that_is_no_mapping_is_refused_like_any_other() -> None:
    with pytest.raises(AleError, match=r"^sft: must be a mapping of keys to values \(it is 3\)"):
        validate(RunConfig, {**MINIMAL, "sft": 3})
