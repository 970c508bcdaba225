"""Several plugins in one run: who gets which task, mixes, overrides into lists, differences, the schema, every typo."""

from __future__ import annotations

import collections
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_origin

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from ale.config import load_run_config, validated_run
from ale.config_base import OWN_KEYS, RULES_KEY, PluginChoice
from ale.errors import ConfigError
from ale.installed import list_plugins
from ale.plugins import load_driver_class
from ale.rollout.mix import MixedTasks, Source
from ale.rollout.selection import Option, Selection
from ale.run_config import RunConfig
from ale.run_file import parse_yaml
from ale.specs.algorithm import RolloutRequest
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.tasks import TaskSource
from ale.task import Task, TaskTests
from ale.testing.batches import trajectory
from ale.trajectory import Trajectory
from ale.validation import model_in

ALE = Path(sys.executable).with_name("ale")
ROOT = Path(__file__).parents[2]
MINIMAL = "tasks: bash\nengine: {use: scripted, answers: [x]}\ntrainer: null\n"


def task(name: str = "t", *tags: str) -> Task:
    return Task(id=name, instruction="Do it.", tests=TaskTests(command="true"), tags=tags)


def options(*rules: tuple[str, tuple[str, ...], float]) -> Selection[Driver]:
    driver = Driver(PluginConfig(), DriverContext())
    return Selection("sandbox", [Option(use, driver, when, weight) for use, when, weight in rules], seed=1)


def asked(group: str, *tags: str, expert: Trajectory | None = None) -> RolloutRequest:
    return RolloutRequest(task("t", *tags), group, seed=0, start_chunk=int(expert is not None), expert=expert)


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


def test_an_expert_is_replayed_under_the_plugin_that_made_it_whatever_else_would_have_been_drawn() -> None:
    selection = options(("a", (), 3), ("b", (), 1), ("c", ("swe",), 1))
    for made, expected in (("a", {"a"}), ("b", {"b"}), ("c", {"a", "b"}), ("gone", {"a", "b"})):
        expert = replace(trajectory(0, reward=1.0), made_with=(("scaffold", "x"), ("sandbox", made)))
        drawn = {selection.of(asked(f"group-{i}", expert=expert)).use for i in range(100)}
        assert drawn == expected, f"made with {made}"
    free = replace(selection, path="reward")
    expert = replace(trajectory(0, reward=1.0), made_with=(("reward", "b"),))
    assert {free.of(asked(f"group-{i}", expert=expert)).use for i in range(100)} == {"a", "b"}


# -- mix -------------------------------------------------------------------------------------------------------------


class Listed(TaskSource):
    """Gives what it holds."""

    def __init__(self, *names: str, endless: bool = False) -> None:
        super().__init__(PluginConfig(), DriverContext())
        self.names, self.endless, self.asked = names, endless, []

    def tasks(self, split: str) -> Iterator[Task]:
        if split != "train":
            raise ConfigError(f"There is no split '{split}'.")
        names = itertools.chain(self.names, (f"more-{i}" for i in itertools.count())) if self.endless else self.names
        return (task(name, "own") for name in names)

    def demonstrator(self, task: Task, seed: int) -> Any:
        self.asked.append(task.id)
        return None


def ids(mix: MixedTasks, n: int = 100) -> list[str]:
    return [t.id for t in itertools.islice(mix.tasks("train"), n)]


def test_tasks_are_dealt_by_weight_in_a_fixed_order() -> None:
    mix = MixedTasks([Source("a", Listed(endless=True), 3), Source("b", Listed("b0", endless=True), 1)])
    first = list(itertools.islice(mix.tasks("train"), 400))
    assert collections.Counter(t.tags[-1] for t in first) == {"a": 300, "b": 100}
    assert [t.tags[-1] for t in first[:8]] == ["a", "a", "b", "a", "a", "a", "b", "a"]
    assert first == list(itertools.islice(mix.tasks("train"), 400))


def test_a_source_that_runs_out_begins_anew_until_all_have_ended() -> None:
    mix = MixedTasks([Source("a", Listed("a0", "a1")), Source("b", Listed("b0", "b1", "b2", "b3"))])
    assert ids(mix) == ["a0", "b0", "a1", "b1", "a0", "b2", "a1", "b3", "a0"]


def test_two_sources_with_one_id_are_told_apart_and_demonstrated_by_their_own() -> None:
    one, two = Listed("x", "y"), Listed("x", "z")
    mix = MixedTasks([Source("bash", one, tags=("easy",)), Source("bash", two)])
    found = list(itertools.islice(mix.tasks("train"), 4))
    assert [t.id for t in found] == ["x", "bash.1/x", "y", "z"]
    assert found[0].tags == ("own", "easy", "bash")
    for t in found:
        mix.demonstrator(t, 0)
    assert (one.asked, two.asked) == (["x", "y"], ["x", "z"])


def test_a_split_that_a_source_does_not_have_names_the_source() -> None:
    mix = MixedTasks([Source("a", Listed("x"))])
    with pytest.raises(ConfigError, match=r"tasks\.mix\.0: There is no split 'heldout'"):
        next(iter(mix.tasks("heldout")))


def test_a_source_without_tasks_is_named_with_what_to_do() -> None:
    mix = MixedTasks([Source("a", Listed("x")), Source("b", Listed())])
    with pytest.raises(
        ConfigError, match=r"tasks\.mix\.1: 'b' has no tasks in its split 'train': give it some .*eval\.split"
    ):
        ids(mix)


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
        validated_run(parse_yaml(f"{MINIMAL}sandbox: {section}\n", "f"))
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


# -- diff and schema ---------------------------------------------------------------------------------------------------


def ale(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ALE, *arguments], capture_output=True, text=True, check=False, timeout=120)


def test_diff_counts_defaults_in(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MINIMAL)
    (tmp_path / "b.yaml").write_text(MINIMAL + "sandbox: {use: local, isolation: auto}\nseed: 1\n")
    (tmp_path / "c.yaml").write_text(MINIMAL + "sandbox: {use: local, isolation: none}\nseed: 2\n")
    assert (ale("config", "--diff", tmp_path / "a.yaml", tmp_path / "b.yaml").stdout) == ""
    done = ale("config", "--diff", tmp_path / "a.yaml", tmp_path / "c.yaml")
    assert (done.returncode, done.stdout) == (1, 'seed: 1 -> 2\nsandbox.isolation: "auto" -> "none"\n')
    wrong = ale("config", "--diff", tmp_path / "a.yaml", tmp_path / "no.yaml")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: There is no run file")


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    done = ale("config", "--schema")
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
        "sandbx: local", "sandbox: locl", "sandbox: {use: local, isolaton: none}", "sandbox: {use: local, isolation: x}",
        "rl: {steps: x}", "sandbox: {select: [{use: local, wen: a}]}", "tasks: {mix: [{use: bash, families: x}]}",
        "observers: [{use: audit_log, pth: x}]", "sft: {algorithm: {use: sft, x: 1}}",
    ],
)  # fmt: skip
def test_a_mistake_does_not_fit_the_schema(schema: jsonschema.Draft202012Validator, wrong: str) -> None:
    assert not schema.is_valid({"tasks": "bash", **yaml.safe_load(wrong)})


@pytest.mark.parametrize(
    "right",
    [
        "rl: {steps: '${seed}'}", "trainer: null", "sft: null", "sandbox: ale-plugin-local:local", "include: base.yaml",
        "sandbox: {use: local, isolation: '${oc.env:HOW}'}", "reward: {select: [{use: tests, when: [a, '!b']}, tests]}",
        "observers: [tensorboard, {use: audit_log, fsync: true}]", "needs: {capabilities: {sandbox: [limits]}}",
    ],
)  # fmt: skip
def test_what_runs_take_fits_the_schema(schema: jsonschema.Draft202012Validator, right: str) -> None:
    assert [e.message for e in schema.iter_errors({"tasks": "bash", **yaml.safe_load(right)})] == []


# -- every typo ----------------------------------------------------------------------------------------------------------


def keys(model: type[BaseModel], path: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key of a model, those of the models in it too, also where it has a list of them."""
    for name, field in model.model_fields.items():
        yield (*path, name)
        inner = model_in(field.annotation)
        if inner is not None and not issubclass(inner, PluginChoice) and inner.__name__ != "PluginRules":
            yield from keys(inner, (*path, name, 0) if get_origin(field.annotation) is tuple else (*path, name))


def places(kind: str) -> Iterator[tuple[str | int, ...]]:
    """Where a plugin of a kind can stand in a run file."""
    if kind == "hooks":
        yield ("observers", 0)
        return
    yield (kind,)
    if kind in RULES_KEY:
        yield (kind, RULES_KEY[kind], 0)
    if kind == "algorithm":
        yield from (("sft", "algorithm"), ("cpt", "algorithm"))


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
    return [line for line in str(error).splitlines() if not line.endswith(": this key is missing.")]


CASES = [
    (info.kind, info.name, place, path)
    for info in list_plugins() if info.package.startswith("ale-plugin-")
    for place in places(info.kind)
    for path in keys(load_driver_class(info.kind, info.name).Config)
]  # fmt: skip


def test_a_typo_in_any_key_of_any_plugin_anywhere_is_a_sentence_with_its_path() -> None:
    assert len(CASES) > 80
    for _, name, place, path in CASES:
        wrong = (*path[:-1], misspelt(path[-1]))
        section = settle({"use": name}, wrong, 1)
        data = parse_yaml(MINIMAL, "f")
        data = settle({k: v for k, v in data.items() if k != place[0]}, place, section)
        with pytest.raises(ConfigError) as caught:
            validated_run({"tasks": "bash", **data} if place[0] != "tasks" else data)
        where = ".".join(map(str, (*place, *wrong)))
        found = told(caught.value)
        assert len(found) == 1, (where, str(caught.value))
        assert found[0].startswith(f"{where}: ")
        assert f"Did you mean '{path[-1]}'?" in found[0], found
        assert found[0].endswith(".")


def test_a_typo_in_any_key_of_the_run_is_a_sentence_with_its_path() -> None:
    paths = [path for path in keys(RunConfig) if len(path) > 1 or path[0] in RunConfig.model_fields]
    assert len(paths) > 60
    for path in paths:
        if "use" in path or "settings" in path or path[-1] == "rules":
            continue
        wrong = (*path[:-1], misspelt(path[-1]))
        with pytest.raises(ConfigError) as caught:
            validated_run(settle(parse_yaml(MINIMAL, "f"), wrong, 1))
        where = ".".join(map(str, wrong))
        found = told(caught.value)
        assert len(found) == 1, (where, str(caught.value))
        assert found[0].startswith(f"{where}: there is no such key.")
        assert f"'{path[-1]}'" in found[0] or f" {path[-1]}" in found[0], found


@pytest.mark.parametrize("key", ["select", "mix"])
def test_a_typo_in_a_key_of_a_rule_is_a_sentence_with_its_path(key: str) -> None:
    kind = "sandbox" if key == "select" else "tasks"
    name = "local" if key == "select" else "bash"
    for own in OWN_KEYS[key]:
        entry = {"use": name, misspelt(own): "a"} if own != "use" else {misspelt("use"): name}
        data = {**parse_yaml(MINIMAL, "f"), kind: {key: [entry]}}
        with pytest.raises(
            ConfigError, match=rf"{kind}\.{key}\.0\.{misspelt(own)}: there is no such key\. Did you mean '{own}'\?"
        ):
            validated_run(data)
