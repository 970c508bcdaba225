"""The table holds what exists here: every key and every plugin's setting that it names is one of the real models."""

from __future__ import annotations

import re
from functools import cache

import pytest

from ale.config.keys import describe_keys
from ale.registry.drivers import load_driver_class
from ale.registry.installed import list_plugins
from ale.registry.validation import nearest_hint
from ale.specs.kinds import ALL_KINDS
from ale_train.config.run import RunConfig
from ale_train.migration.keys import find_name
from ale_train.migration.table import FRAMEWORKS, Row, plugin_names, rows

KINDS = {*ALL_KINDS} - {"hooks", "tool_format"}


@cache
def keys_of_run() -> set[str]:
    return {row[0] for row in describe_keys(RunConfig)}


@cache
def keys_of_plugin(kind: str, name: str) -> set[str]:
    return {row[0] for row in describe_keys(load_driver_class(kind, name).Config)}


def targets() -> list[tuple[Row, str]]:
    return [(row, path) for row in rows() for path in row.here]


@pytest.mark.parametrize(("row", "path"), targets(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_key_that_the_table_gives_exists(row: Row, path: str) -> None:
    if path in keys_of_run():
        return
    kind, _, key = path.partition(".")
    assert kind in KINDS, f"there is no key {path}"
    assert row.of, f"say which plugins have {path}, under 'of'"
    installed = {info.name for info in list_plugins(kind)}
    if not installed & set(row.of):
        pytest.skip(f"none of {row.of} is installed")
    for plugin in installed & set(row.of):
        assert key in keys_of_plugin(kind, plugin), f"the {kind} plugin {plugin} has no setting {key}"


def test_the_table_knows_hundreds_of_names_of_each_kind_and_says_something_of_each() -> None:
    for framework in FRAMEWORKS:
        assert sum(len(row.names.get(framework, ())) for row in rows()) >= 50, framework
    for row in rows():
        assert row.names, row
        assert row.here or row.say, f"{row.all_names}: give a key, or say what to do instead"
        assert not row.say or row.say.endswith("."), row.say
        assert all(text.endswith(".") for text in row.values.values()), row.values


def test_no_name_is_a_key_of_a_run_file() -> None:
    assert not {name for row in rows() for name in row.all_names} & keys_of_run()


def test_each_name_leads_to_a_row_that_has_it() -> None:
    """A flat name that several frameworks use for different things may lead nowhere, but never to another name."""
    for row in rows():
        for name in (name for name in row.all_names if name not in row.here):
            found = find_name(tuple(name.removesuffix(".*").split(".")))
            assert found is None or name in found[0].all_names or found[1].endswith(".*"), (name, found)
            owners = [other for other in rows() if name in other.all_names]
            assert found is not None or len(owners) > 1, f"{name} is not found"


def test_what_a_sentence_writes_as_a_plugin_with_settings_exists() -> None:
    texts = [text for row in rows() for text in (row.say, *row.values.values())]
    texts += [text for names in plugin_names().values() for text in names.values()]
    written = [match for text in texts for match in re.findall(r"\{use: (pg|ipa), ([^}]*)\}", text)]
    assert len(written) > 20
    for plugin, settings in written:
        config = load_driver_class("algorithm", plugin).Config
        pairs = dict(part.split(": ") for part in settings.split(", "))
        if "..." not in pairs.values():
            config.model_validate(pairs)


def test_a_name_of_a_plugin_is_none_that_exists_and_its_kind_is_one() -> None:
    assert set(plugin_names()) <= set(ALL_KINDS)
    for kind, names in plugin_names().items():
        installed = [info.name for info in list_plugins(kind)]
        for name, sentence in names.items():
            assert name not in installed, f"{kind} {name} is installed: take it out of plugin_names.yaml"
            assert sentence.endswith("."), sentence
            assert name == name.lower().replace("-", "_")


def test_no_typo_in_a_key_of_ours_is_taken_for_another_framework() -> None:
    """What a misspelt key says is the spelling, unless it happens to be a word of another framework."""
    for path in keys_of_run():
        *above, key = path.split(".")
        wrong = key + key[-1]
        assert find_name((*above, wrong)) is None, (path, wrong)
        if len(key) == 1:
            continue  # too short for a typo
        assert nearest_hint(wrong, [key]) == f" Did you mean '{key}'?"
