"""Whatever stands in a run file, at random: it is taken, or refused in sentences."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_files import MINIMAL, Load, mistakes, outcome, quick

from ale.config.keys import describe_keys
from ale.errors import ConfigError
from ale_train.config.run import RunConfig

FULL: dict[str, Any] = {
    "name": "full",
    "seed": 1,
    "run_dir": "runs",
    "model": {"scratch": {"hidden_size": 32, "layers": 1}},
    "tasks": {"use": "bash"},
    "scaffold": {"use": "iflow", "max_output_chars": 300},
    "sandbox": {"use": "local", "isolation": "none"},
    "reward": {"use": "tests"},
    "engine": {"use": "scripted", "random": True},
    "trainer": None,
    "algorithm": {"use": "ipa", "gamma": 0.9},
    "needs": {"network": "none", "resources": {"memory_mib": 64}},
    "rollout": {"concurrency": 3, "max_calls": 2},
    "sft": {"steps": 3, "algorithm": {"use": "sft", "mask_errors": True}, "demonstrations": {"count": 3}},
    "rl": {"steps": 3, "prompts_per_step": 2},
    "eval": {"episodes": 3},
}


def paths(data: dict[str, Any], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key of nested mappings."""
    found = []
    for key, value in data.items():
        found.append((*prefix, key))
        found += paths(value, (*prefix, key)) if isinstance(value, dict) else []
    return found


def changed(path: tuple[str, ...], key: str | None = None, **value: Any) -> dict[str, Any]:
    """FULL with the last key of the path renamed, or its value replaced."""
    data = json.loads(json.dumps(FULL))
    node = data
    for part in path[:-1]:
        node = node[part]
    old = node.pop(path[-1])
    node[key or path[-1]] = value.get("value", old)
    return dict(data)


@st.composite
def misspelt(draw: st.DrawFn) -> tuple[tuple[str, ...], str]:
    """A path in FULL, and its last key with one letter more, less, changed or moved."""
    path = draw(st.sampled_from(paths(FULL)))
    key = path[-1]
    i = draw(st.integers(0, len(key) - 1))
    letter = draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz_-0"))
    swapped = key[:i] + key[i + 1 : i + 2] + key[i] + key[i + 2 :]
    forms = [key[:i] + letter + key[i:], key[:i] + key[i + 1 :], key[:i] + letter + key[i + 1 :], swapped]
    return path, draw(st.sampled_from(forms))


def test_the_full_file_is_valid(load: Load) -> None:
    assert load(FULL).run.sft is not None


@settings(quick, max_examples=150)
@given(misspelt())
def test_a_misspelt_key_anywhere_is_found_with_its_path_and_what_is_valid(
    load: Load, misspelling: tuple[tuple[str, ...], str]
) -> None:
    path, wrong = misspelling
    siblings = {p[-1] for p in paths(FULL) if p[:-1] == path[:-1]} | {r[0] for r in describe_keys(RunConfig)}
    if wrong in siblings or not wrong:
        return
    found = mistakes(load, changed(path, wrong))
    where = ".".join((*path[:-1], wrong))
    right = path[-1]
    if right == "use":  # without it, nobody knows what the other keys mean
        forms = (f"{'.'.join(path)}: this key is missing", f"{where}: there is no such key. Did you mean 'use'?")
        assert any(line.startswith(forms) for line in found)
        return
    (sentence,) = [line for line in found if line.startswith(f"{where}: there is no such key.")]
    assert f"'{right}'" in sentence or f" {right}" in sentence


@settings(quick, max_examples=100)
@given(
    st.sampled_from(paths(FULL)),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
)
def test_any_value_anywhere_is_taken_or_refused_in_sentences(load: Load, path: tuple[str, ...], value: Any) -> None:
    lines = outcome(load, changed(path, value=value)).splitlines()
    assert lines
    assert all(line.strip() for line in lines)


@settings(quick, max_examples=200)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda t: t.encode("utf-8", "surrogatepass")))
def test_garbage_is_refused_in_one_sentence(load: Load, garbage: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        load(garbage)
    assert str(caught.value)


@settings(quick, max_examples=150)
@given(st.text("ab:-[]{}&*!|>'\"#%@`?,~$\n \t01.x", max_size=40))
def test_almost_yaml_is_refused_in_sentences(load: Load, text: str) -> None:
    with pytest.raises(ConfigError):
        load(text)


@quick
@given(st.text(max_size=30))
def test_any_override_is_applied_or_refused_in_sentences(load: Load, override: str) -> None:
    assert outcome(load, MINIMAL, override)
