"""These tests check how run files merge and resolve, and that each mistake gives a sentence with place and remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_files import MINIMAL, Load, mistakes, quick

from ale.config.keys import describe_keys
from ale.config.yaml_text import dump_yaml
from ale.errors import ConfigError
from ale_train.config.run import RunConfig

# -- what holds ------------------------------------------------------------------------------------------------


def test_a_file_gives_typed_and_plain_data(load: Load, tmp_path: Path) -> None:
    loaded = load({**MINIMAL, "rl": {"steps": 3}, "run_dir": "some/where"})
    assert loaded.run.rl is not None
    assert loaded.run.rl.steps == 3
    assert loaded.run.engine.settings == {"answers": ["hi"]}
    assert loaded.run.sandbox.use == "local"
    assert loaded.run.run_dir == Path("some/where"), "relative to the current folder"
    assert json.loads(json.dumps(loaded.values.data)) == loaded.values.data


def test_overrides_win(load: Load) -> None:
    loaded = load(
        {**MINIMAL, "sandbox": "local", "sft": {"steps": 5}},
        "rl.steps=3",
        "rl.min_entropy=1e-3",
        "sandbox.isolation=none",
        "algorithm.gamma=0.9",
        "sft=null",
        "engine.answers=[a, 'b: c']",
        "name=x-1",
    )
    assert loaded.run.rl is not None
    assert (loaded.run.rl.steps, loaded.run.rl.min_entropy) == (3, 1e-3)
    assert loaded.values.data["sandbox"] == {"use": "local", "isolation": "none"}
    assert loaded.values.data["algorithm"] == {"use": "ipa", "gamma": 0.9}
    assert loaded.run.sft is None
    assert loaded.run.engine.settings == {"answers": ["a", "b: c"]}


def test_an_override_of_a_nested_default_plugin_keeps_the_plugin(load: Load) -> None:
    loaded = load(MINIMAL, "sft.algorithm.mask_errors=false")
    assert loaded.run.sft is not None
    assert loaded.run.sft.algorithm.use == "sft"
    assert loaded.run.sft.algorithm.settings == {"mask_errors": False}


def test_naming_another_plugin_drops_the_settings_of_the_one_before(load: Load) -> None:
    data = {**MINIMAL, "engine": {"use": "torch", "max_batch": 3}}
    for overrides in (["engine=torch"], ["engine.use=scripted", "engine.random=true"]):
        assert "max_batch" not in load(data, *overrides).run.engine.settings
    assert load(data, "engine.use=torch").run.engine.settings == {"max_batch": 3}


def test_a_tilde_removes_a_key(load: Load) -> None:
    assert load({**MINIMAL, "rl": {"steps": 3}}, "~rl.steps").run.rl == load(MINIMAL, "rl={}").run.rl
    assert load({**MINIMAL, "rl": {"steps": 3}}, "~rl").run.rl is None


def test_includes_are_merged_beneath_in_order(load: Load, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.yaml").write_text("include: [b.yaml]\nseed: 2\neval: {episodes: 3}\nsandbox: local\n")
    (tmp_path / "parts" / "b.yaml").write_text("tasks: bash\nseed: 9\nengine: {use: torch, max_batch: 3}\n")
    (tmp_path / "parts" / "c.yaml").write_text("sandbox: {isolation: none}\n")
    loaded = load(
        {
            "include": ["parts/a.yaml", "parts/c.yaml"],
            "eval": {"every": 0},
            **{k: MINIMAL[k] for k in ("engine", "trainer")},
        }
    )
    assert (loaded.run.seed, loaded.run.eval.episodes, loaded.run.eval.every) == (2, 3, 0)
    assert loaded.run.sandbox.settings == {"isolation": "none"}
    assert loaded.run.engine.settings == {"answers": ["hi"]}, "another plugin replaces the whole section"
    assert "include" not in loaded.values.data


def test_interpolation_refers_to_other_keys(load: Load) -> None:
    loaded = load(
        {
            **MINIMAL,
            "name": "s${seed}",
            "seed": 4,
            "rollout": {"max_calls": "${eval.episodes}"},
            "eval": {"episodes": 64},
        }
    )
    assert loaded.run.name == "s4"
    assert loaded.run.rollout.max_calls == 64


def test_numbers_dates_and_merge_keys_are_what_they_look_like(load: Load) -> None:
    text = "x-part: 1\n"
    assert mistakes(load, text + "tasks: bash\n")[0].startswith("x-part: there is no such key.")
    loaded = load(
        "tasks: bash\nname: 2026-01-01\nengine: {use: scripted, random: true}\ntrainer: null\n"
        "eval: &e {episodes: 3, temperature: 1e-1}\nrollout: {concurrency: 3, timeout_s: 1e2}\n"
        "rl: {<<: {steps: 7}, prompts_per_step: 2}\n"
    )
    assert loaded.run.name == "2026-01-01"
    assert (loaded.run.eval.temperature, loaded.run.rollout.timeout_s) == (0.1, 100.0)
    assert loaded.run.rl is not None
    assert loaded.run.rl.steps == 7


def test_the_resolved_configuration_is_a_run_file_again(load: Load) -> None:
    first = load(
        {**MINIMAL, "seed": 3, "engine": {"use": "scripted", "answers": ["echo \\${HOME}", "é\n\t", "\x85", "0E0"]}}
    )
    assert first.run.engine.settings["answers"] == ["echo ${HOME}", "é\n\t", "\x85", "0E0"]
    again = load(first.to_yaml())
    assert (again.values.data, again.run) == (first.values.data, first.run)


@quick
@given(
    steps=st.integers(0, 10**6),
    entropy=st.floats(0, 1e6),
    answers=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="$"), max_size=20), min_size=1),
)
def test_overrides_round_trip(load: Load, steps: int, entropy: float, answers: list[str]) -> None:
    loaded = load(MINIMAL, f"rl.steps={steps}", f"rl.min_entropy={entropy!r}", f"engine.answers={dump_yaml(answers)}")
    assert loaded.values.data["rl"] == {"steps": steps, "min_entropy": entropy}
    assert loaded.values.data["engine"]["answers"] == answers
    assert load(loaded.to_yaml()).run == loaded.run


@quick
@given(st.text("\\${}a\"' :", min_size=1, max_size=12))
def test_any_text_survives_being_written_and_read_again(load: Load, text: str) -> None:
    try:
        first = load({**MINIMAL, "engine": {"use": "scripted", "answers": [text]}})
    except ConfigError:
        return  # an interpolation that leads nowhere
    assert load(first.to_yaml()).run == first.run


# -- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["rl.stepz=1"], "rl.stepz: there is no such key. Did you mean 'steps'? Valid here: steps, prompts_per_step"),
        (["rll.steps=1"], "rll: there is no such key. Did you mean 'rl'?"),
        (["warmup_steps=1"], "warmup_steps: there is no such key. There is sft.warmup_steps."),
        (["rl.steps=x"], "rl.steps: input should be a valid integer"),
        (["rl.steps=-1"], "rl.steps: input should be greater than or equal to 0 (it is -1)."),
        (["rl=3"], "rl: must be a mapping of keys to values (it is 3)."),
        (
            ["needs.network=non"],
            "needs.network: input should be 'none', 'endpoint-only', 'allow' or 'full' (it is 'non'). Did you mean "
            "'none'?",
        ),
        (
            ["sandbox=lokal"],
            "sandbox: there is no sandbox plugin 'lokal'. Did you mean 'local'? Installed: docker, local, podman, "
            "rock.",
        ),
        (["sandbox.isolaton=none"], "sandbox.isolaton: there is no such key. Did you mean 'isolation'?"),
        (["sandbox=3"], "sandbox: must be the name of a sandbox plugin, or a mapping with 'use' (it is 3)."),
        (["reward=null"], "reward: must be the name of a reward plugin, or a mapping with 'use' (it is None)."),
        (
            ["sandbox={}"],
            "sandbox.use: this key is missing; it says which sandbox plugin. Installed: docker, local, podman, rock.",
        ),
        (["sandbox.use=3"], "sandbox.use: must be a name (it is 3); it says which sandbox plugin."),
        (["~tasks"], "tasks: this key is missing; name a tasks plugin. Installed: bash"),
        (["sft.algorithm.gama=1"], "sft.algorithm.gama: there is no such key. Valid here: mask_errors"),
        (["sft.algorithm=sfd"], "sft.algorithm: there is no algorithm plugin 'sfd'. Did you mean 'sft'?"),
        (["sandbox.settings={isolation: none}"], "sandbox.settings: there is no such key."),
        (
            ["name=${nope}"],
            "name: Interpolation key 'nope' not found. A text that is no interpolation is written \\${...}.",
        ),
        (["name=${name}"], "name: "),
        (["name=???"], "name: Missing mandatory value"),
        (["seed=.nan"], "The override 'seed=.nan' is not a number (.nan)."),
        (["seed"], "The override 'seed' must look like key=value, such as rl.steps=3, or ~key to remove a key."),
        (["=3"], "The override '=3' must look like key=value"),
        (["a..b=3"], "The override 'a..b=3' must look like key=value"),
        (["~rl"], "The override '~rl': the run file gives no 'rl' to remove."),
        (["rl.steps=[1"], "The override 'rl.steps=[1', line 2, column 1: did not find expected ',' or ']'"),
    ],
)
def test_a_mistake_is_one_sentence(load: Load, overrides: list[str], sentence: str) -> None:
    (found, *others) = mistakes(load, MINIMAL, *overrides)
    assert found.startswith(sentence)
    assert found.endswith((".", "?"))
    assert not others


def test_a_value_holds_no_keys(load: Load) -> None:
    (sentence,) = mistakes(load, {**MINIMAL, "seed": 1}, "seed.x=3")
    assert sentence == "The override 'seed.x=3': 'seed' is 1 and holds no keys."


def test_all_mistakes_are_told_at_once_one_a_line(load: Load) -> None:
    found = mistakes(
        load, {**MINIMAL, "sede": 1, "sandbox": {"use": "local", "x": 1}, "rl": {"steps": "a"}, "reward": "r"}
    )
    assert [line.partition(":")[0] for line in found] == ["sandbox.x", "reward", "rl.steps", "sede"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must hold keys and values, such as 'tasks: bash'; it is empty."),
        ("- a\n", "it is a list."),
        ("word\n", "it is a single value."),
        ("a: [1\n", "line 2, column 1: did not find expected ',' or ']'."),
        ("tasks: bash\nseed: 1\nseed: 2\n", "line 3, column 1: found duplicate key seed."),
        ("rl: {steps: 1, steps: 2}", "line 1, column 16: found duplicate key steps."),
        ("1: 2\n", "run.yaml: the key 1 is not a text; put it in quotes."),
        ("a: !!python/object:os.system x\n", "could not determine a constructor for the tag"),
        ("a: !!bool maybe\n", "this is not YAML"),
        ("a: !!binary aGk=\n", "'a' is a bytes; write a number, a text, a list or a mapping."),
        ("a: !!set {b}\n", "'a': Value 'set' is not a supported primitive type."),
        ('a: "\\ud800"\n', "line 1, column 7: found invalid Unicode character escape code."),
        ("a: .nan\n", "'a' is not a number (.nan)."),
        ("a: &a [*a]\n", "line 1, column 4: YAML recursive aliases are not supported."),
        ("a: " + "[" * 3000 + "]" * 3000 + "\n", "nest"),
        (
            "a: &x0 [1,1,1,1,1,1,1,1,1,1]\n"
            + "".join(f"b{i}: &x{i + 1} [{','.join([f'*x{i}'] * 10)}]\n" for i in range(9)),
            "YAML node expansion exceeds",
        ),
        ("a: \x07\n", "this is not YAML: unacceptable character #x0007"),
        (b"a: \xff\n", "is not text in UTF-8 (see byte 3)."),
        ("include: 3\n", "'include' must be a list of files; it is 3."),
        ("include: [nowhere.yaml]\n", "There is no run file"),
        ("include: run.yaml\n", "includes itself:"),
        ("include: ['.']\n", "is a folder, not a run file."),
        ('include: ["a\\0b"]\n', "cannot be read"),
    ],
)
def test_a_file_that_is_no_run_file_is_one_sentence(load: Load, text: str | bytes, sentence: str) -> None:
    (found,) = mistakes(load, text)
    assert sentence in found
    assert "run.yaml" in found


def test_a_missing_include_says_who_wants_it(load: Load, tmp_path: Path) -> None:
    (found,) = mistakes(load, "include: [nowhere.yaml]\n")
    assert found == f"There is no run file {tmp_path}/nowhere.yaml, which {tmp_path}/run.yaml includes."


def test_an_item_that_is_wrong_is_reported_once(load: Load) -> None:
    assert mistakes(load, MINIMAL, "engine.answers=[1]") == [
        "engine.answers.0: input should be a valid string (it is 1)."
    ]


def test_every_key_is_described() -> None:
    rows = describe_keys(RunConfig)
    assert len(rows) > 40
    assert [row[0] for row in rows if len(row[3]) < 3 and not row[0].endswith("settings")] == []
    assert {"cpt.stages.N.weight_decay", "sft.stages.N.keep.min_turns"} <= {row[0] for row in rows}, "of lists too"
