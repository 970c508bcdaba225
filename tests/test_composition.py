"""These tests combine several plugins in one run: choice by task, mixes, overrides, differences, schema, typos."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_origin

import jsonschema
import pytest
import yaml
from pydantic import BaseModel
from support.command_line import ale

from ale.config.plugin_field import plugin_places
from ale.config.yaml_text import parse_yaml
from ale.errors import ConfigError
from ale.registry.drivers import load_driver_class
from ale.registry.installed import list_plugins
from ale.registry.validation import model_in, validate
from ale.rollout.selection import Option, Selection
from ale.specs.algorithm import RolloutRequest
from ale.specs.choice import Mix, PluginChoice, PluginRules, Select
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.start import Opening, Start, StartContext
from ale.task import Task, TaskTests
from ale_train.config.load import load_run_config
from ale_train.config.run import RunConfig

ROOT = Path(__file__).parents[1]
MINIMAL = "tasks: bash\nengine: {use: scripted, answers: [x]}\ntrainer: null\n"


def task(name: str = "t", *tags: str) -> Task:
    return Task(id=name, instruction="Do it.", tests=TaskTests(command="true"), tags=tags)


def options(*rules: tuple[str, tuple[str, ...], float]) -> Selection[Driver]:
    driver = Driver(PluginConfig(), DriverContext())
    return Selection("sandbox", [Option(use, driver, when, weight) for use, when, weight in rules], seed=1)


class MadeWith(Start):
    """Works with these plugins."""

    made_with: tuple[tuple[str, str], ...] = ()

    def __init__(self, *made_with: tuple[str, str]) -> None:
        self.made_with = made_with  # type: ignore[misc]

    def open(self, context: StartContext) -> Opening:
        return Opening()


def asked(group: str, *tags: str, start: Start | None = None) -> RolloutRequest:
    return RolloutRequest(task("t", *tags), group, seed=0, start=start)


# -- select ----------------------------------------------------------------------------------------------------------


def test_the_first_rule_that_fits_decides() -> None:
    selection = options(("a", ("swe",), 1), ("b", ("swe", "!heavy"), 1), ("c", ("!light",), 1), ("d", (), 1))
    for tags, expected in ((("swe",), "a"), (("heavy",), "c"), (("light",), "d"), (("swe", "light"), "a"), ((), "c")):
        assert selection.of(asked("g", *tags)).use == expected


def test_neighbours_with_the_same_when_share_by_weight_and_a_group_stays_together() -> None:
    selection = options(("a", (), 3), ("b", (), 1))
    drawn = [selection.of(asked(f"group-{i}")).use for i in range(4000)]
    share = collections.Counter(drawn)["a"] / len(drawn)
    assert 0.72 < share < 0.78
    assert drawn == [selection.of(asked(f"group-{i}")).use for i in range(4000)], "a repeated run chooses the same"


def test_a_task_that_no_rule_fits_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"sandbox: no rule fits the task t \(its tags: x, y\); end the list with"):
        options(("a", ("swe",), 1)).of(asked("g", "x", "y"))


def test_a_start_gets_the_plugins_that_it_works_with_whatever_else_would_have_been_drawn() -> None:
    selection = options(("a", (), 3), ("b", (), 1), ("c", ("swe",), 1))
    for made, expected in (("a", {"a"}), ("b", {"b"}), ("c", {"a", "b"}), ("gone", {"a", "b"})):
        start = MadeWith(("scaffold", "x"), ("sandbox", made))
        drawn = {selection.of(asked(f"group-{i}", start=start)).use for i in range(100)}
        assert drawn == expected, f"made with {made}"
    free = replace(selection, path="reward")
    start = MadeWith(("reward", "b"))
    assert {free.of(asked(f"group-{i}", start=start)).use for i in range(100)} == {"a", "b"}


# -- in the file -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ("{select: []}", "sandbox.select: must be a list of plugin sections (it is [])."),
        ("{select: [{use: local}], isolation: none}", "sandbox.isolation: beside 'select' a section has no key"),
        ("{select: [{when: a}]}", "sandbox.select.0.use: this key is missing"),
        ("{select: [{use: local, weight: 0}]}", "sandbox.select.0.weight: input should be greater than 0 (it is 0)."),
        ("{select: [{use: local, weight: .inf}]}", "sandbox.select.0.weight: input should be a finite number"),
        ("{select: [{use: local, when: [3]}]}", "sandbox.select.0.when.0: input should be a valid string"),
        ("{select: [local, {use: local, when: a}]}", "sandbox.select.1: no task comes here, since a rule above it"),
        ("{select: [{use: locl}]}", "sandbox.select.0: there is no sandbox plugin 'locl'. Did you mean 'local'?"),
        ("{selct: [local]}", "sandbox.selct: there is no such key. Did you mean 'select'?"),
    ],
)
def test_a_mistake_in_the_rules_is_one_sentence(section: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(RunConfig, parse_yaml(f"{MINIMAL}sandbox: {section}\n", "f"))
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_overrides_reach_into_lists(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(MINIMAL + "sandbox: {select: [{use: local, when: a, isolation: none}, local]}\n")
    run = load_run_config(file, ["sandbox.select.1.isolation=none", "sandbox.select.0.weight=2"]).run
    assert [(r.settings, r.weight) for r in run.sandbox.rules] == [
        ({"isolation": "none"}, 2),
        ({"isolation": "none"}, 1),
    ]  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"'sandbox\.select' is a list of 2; name an entry by its number from 0"):
        load_run_config(file, ["sandbox.select.2.use=local"])
    less = load_run_config(file, ["~sandbox.select.0.isolation", "~sandbox.select.1"]).run
    assert [(r.when, r.settings) for r in less.sandbox.rules] == [(("a",), {})]  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"'sandbox\.select' is a list of 2; name an entry by its number from 0"):
        load_run_config(file, ["~sandbox.select.7"])
    with pytest.raises(ConfigError, match=r"the run file gives no 'sandbox\.select\.1\.isolation' to remove"):
        load_run_config(file, ["~sandbox.select.1.isolation"])
    one = load_run_config(file, ["sandbox=local"]).run
    assert one.sandbox == PluginChoice(use="local"), "one plugin takes the rules' place"
    again = tmp_path / "again.yaml"
    again.write_text(load_run_config(file).to_yaml())
    assert load_run_config(again).run == load_run_config(file).run


def test_an_include_gives_way_to_rules_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(MINIMAL + "sandbox: {use: local, isolation: none}\n")
    (tmp_path / "run.yaml").write_text("include: [base.yaml]\nsandbox: {select: [local]}\n")
    assert [r.settings for r in load_run_config(tmp_path / "run.yaml").run.sandbox.rules] == [{}]  # type: ignore[union-attr]


# -- schema -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    done = ale("config", "schema")
    assert (done.returncode, done.stderr) == (0, "")
    body = json.loads(done.stdout)
    jsonschema.Draft202012Validator.check_schema(body)
    return jsonschema.Draft202012Validator(body)


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_fits_the_schema(schema: jsonschema.Draft202012Validator, file: Path) -> None:
    assert [error.message for error in schema.iter_errors(yaml.safe_load(file.read_text()))] == []


@pytest.mark.parametrize(
    "wrong",
    [
        "sandbx: local",
        "sandbox: locl",
        "sandbox: {use: local, isolaton: none}",
        "sandbox: {use: local, isolation: x}",
        "rl: {steps: x}",
        "sandbox: {select: [{use: local, wen: a}]}",
        "tasks: {mix: [{use: bash, families: x}]}",
        "observers: [{use: audit_log, pth: x}]",
        "sft: {algorithm: {use: sft, x: 1}}",
    ],
)
def test_a_mistake_does_not_fit_the_schema(schema: jsonschema.Draft202012Validator, wrong: str) -> None:
    assert not schema.is_valid({"tasks": "bash", **yaml.safe_load(wrong)})


@pytest.mark.parametrize(
    "right",
    [
        "rl: {steps: '${seed}'}",
        "trainer: null",
        "sft: null",
        "sandbox: ale-plugin-local:local",
        "include: base.yaml",
        "sandbox: {use: local, isolation: '${oc.env:HOW}'}",
        "reward: {select: [{use: tests, when: [a, '!b']}, tests]}",
        "observers: [tensorboard, {use: audit_log, fsync: true}]",
        "needs: {capabilities: {sandbox: [limits]}}",
    ],
)
def test_what_runs_take_fits_the_schema(schema: jsonschema.Draft202012Validator, right: str) -> None:
    assert [e.message for e in schema.iter_errors({"tasks": "bash", **yaml.safe_load(right)})] == []


# -- every typo
# ----------------------------------------------------------------------------------------------------------


def keys(model: type[BaseModel], path: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key of a model, those of the models in it too, also where it has a list of them."""
    for name, field in model.model_fields.items():
        yield (*path, name)
        inner = model_in(field.annotation)
        if inner is not None and not issubclass(inner, PluginChoice):
            yield from keys(inner, (*path, name, 0) if get_origin(field.annotation) is tuple else (*path, name))


def places(kind: str) -> Iterator[tuple[str | int, ...]]:
    """Where a plugin of a kind can stand in a run file."""
    for place in plugin_places(RunConfig):
        path = tuple(place.path.split("."))
        if place.kind == kind:
            yield (*path, 0) if place.is_list else path
            if place.several is not None:
                yield (*path, place.several.key, 0)


def settle(data: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """Plain data with a value at a path, what is missing on the way made."""
    if not path:
        return value
    head, *rest = path
    if isinstance(head, int):
        return [settle(data[0] if data else None, tuple(rest), value)]
    return {**(data or {}), head: settle((data or {}).get(head), tuple(rest), value)}


def misspelt(key: str) -> str:
    return key + key[-1]


def told(error: ConfigError) -> list[str]:
    """The lines of a mistake, but for those that say what a section as short as ours leaves out."""
    return [line for line in str(error).splitlines() if ": this key is missing" not in line]


CASES = [
    (info.kind, info.name, place, path)
    for info in list_plugins()
    if info.package.startswith("ale-plugin-")
    for place in places(info.kind)
    for path in keys(load_driver_class(info.kind, info.name).Config)
]


def test_a_typo_in_any_key_of_any_plugin_anywhere_is_a_sentence_with_its_path() -> None:
    assert len(CASES) > 80
    minimal = parse_yaml(MINIMAL, "f")
    for _, name, place, path in CASES:
        wrong = (*path[:-1], misspelt(path[-1]))
        section = settle({"use": name}, wrong, 1)
        data = settle({k: v for k, v in minimal.items() if k != place[0]}, place, section)
        with pytest.raises(ConfigError) as caught:
            validate(RunConfig, {"tasks": "bash", **data} if place[0] != "tasks" else data)
        where = ".".join(map(str, (*place, *wrong)))
        found = told(caught.value)
        assert len(found) == 1, (where, str(caught.value))
        assert found[0].startswith(f"{where}: ")
        # The typo may be how another framework spells it.
        assert f"Did you mean '{path[-1]}'?" in found[0] or f".{path[-1]} of " in found[0], found


def test_a_typo_in_any_key_of_the_run_is_a_sentence_with_its_path() -> None:
    paths = [path for path in keys(RunConfig) if len(path) > 1 or path[0] in RunConfig.model_fields]
    assert len(paths) > 60
    for path in paths:
        if "use" in path or "settings" in path or path[-1] == "rules":
            continue
        wrong = (*path[:-1], misspelt(path[-1]))
        with pytest.raises(ConfigError) as caught:
            validate(RunConfig, settle(parse_yaml(MINIMAL, "f"), wrong, 1))
        where = ".".join(map(str, wrong))
        found = told(caught.value)
        assert len(found) == 1, (where, str(caught.value))
        assert found[0].startswith(f"{where}: there is no such key.")
        assert f"'{path[-1]}'" in found[0] or f" {path[-1]}" in found[0], found


@pytest.mark.parametrize(("several", "kind", "name"), [(Select, "sandbox", "local"), (Mix, "tasks", "bash")])
def test_a_typo_in_a_key_of_a_rule_is_a_sentence_with_its_path(
    several: type[PluginRules], kind: str, name: str
) -> None:
    key = several.key
    for own in set(several.rule().model_fields) - {"settings"}:
        entry = {"use": name, misspelt(own): "a"} if own != "use" else {misspelt("use"): name}
        data = {**parse_yaml(MINIMAL, "f"), kind: {key: [entry]}}
        with pytest.raises(
            ConfigError, match=rf"{kind}\.{key}\.0\.{misspelt(own)}: there is no such key\. Did you mean '{own}'\?"
        ):
            validate(RunConfig, data)
