"""Secrets from the environment are used, and never written into the run folder, logs or messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_packages import Install
from support.forked_command import program

from ale.config.references import redact_json, resolve
from ale.errors import ConfigError
from ale.store.run_store import RunStore
from ale_train.config.load import load_run_config

SECRET = 'sk-"größe"/é\\x'
RUN = """
name: secret
run_dir: {runs}
tasks: {{use: bash, families: [write]}}
engine: {{use: scripted, answers: [x]}}
trainer: null
eval: {{episodes: 2}}
reward:
  use: fixed
  token: "${{oc.env:ALE_TEST_KEY}}"
  header: "Bearer ${{reward.token}} ${{oc.env:ALE_TEST_NONE,'a b'}}"
observers: [audit_log, tensorboard]
rollout: {{max_resamples: 0}}
"""
LEAKY = """
from ale.errors import TaskError
from ale.specs.driver import Driver, PluginConfig
from ale.specs.reward import Reward
from pydantic import Field
import logging
class Fixed(Driver, Reward):
    api_version = ">=1.0,<1.2"
    class Config(PluginConfig):
        token: str = Field(description="A secret.")
        header: str = Field(description="With a secret in it.")
    async def score(self, task, sandbox, trajectory):
        logging.getLogger("ale.fixed").warning("asking with %s", self.config.header)
        raise TaskError(f"refused: {self.config.token!r} {self.config.header}")
"""


@pytest.fixture
def leaky(install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A run file whose reward tells everybody its secret."""
    install("far-away", LEAKY)
    monkeypatch.setenv("ALE_TEST_KEY", SECRET)
    file = tmp_path / "run.yaml"
    file.write_text(RUN.format(runs=tmp_path / "runs"))
    return file


def traces(text: bytes) -> list[bytes]:
    """Forms of the secret in a text."""
    forms = (SECRET, "sk-", "gr\\u00f6\\u00dfe", "größe")
    return [form.encode() for form in forms if form.encode() in text]


def test_the_run_has_the_value_and_what_is_written_has_the_reference(leaky: Path) -> None:
    loaded = load_run_config(leaky)
    settings = loaded.run.reward.settings  # type: ignore[union-attr]
    assert settings == {"token": SECRET, "header": f"Bearer {SECRET} a b"}
    assert loaded.values.public["reward"]["token"] == "${oc.env:ALE_TEST_KEY}"
    assert loaded.values.public["reward"]["header"] == "Bearer ${reward.token} ${oc.env:ALE_TEST_NONE,'a b'}"
    assert not traces(loaded.to_yaml().encode())


def test_what_is_written_loads_again_to_the_same_run(leaky: Path, tmp_path: Path) -> None:
    loaded = load_run_config(leaky, ["name=price", "eval.split=heldout", r"scaffold.system_prompt='costs \${5} $x'"])
    again = tmp_path / "again.yaml"
    again.write_text(loaded.to_yaml())
    assert load_run_config(again).run == loaded.run
    assert loaded.run.scaffold.settings["system_prompt"] == "costs ${5} $x"  # type: ignore[union-attr]


def test_a_run_that_tells_its_secret_everywhere_leaves_it_nowhere(leaky: Path, tmp_path: Path) -> None:
    done = subprocess.run([program(), "run", leaky], capture_output=True, check=False, timeout=120)
    assert done.returncode == 1, done.stderr
    assert b"asking with Bearer ${oc.env:ALE_TEST_KEY}" in done.stderr
    assert not traces(done.stdout + done.stderr)
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert {"run.db", "config.yaml", "summary.json", "audit.jsonl"} <= {path.name for path in files}
    assert {path.name: found for path in files if (found := traces(path.read_bytes()))} == {}


def test_a_mistake_is_told_without_the_value(leaky: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_config(leaky, ["rl.steps=${oc.env:ALE_TEST_KEY}"])
    assert str(caught.value).startswith("rl.steps: ")
    assert "${oc.env:ALE_TEST_KEY}" in str(caught.value)
    assert not traces(str(caught.value).encode())


def test_a_variable_that_is_not_set_is_named_with_its_path(leaky: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALE_TEST_KEY")
    with pytest.raises(ConfigError, match=r"reward\.token: the environment variable ALE_TEST_KEY is not set"):
        load_run_config(leaky)


def test_other_interpolations_are_written_as_what_they_came_to() -> None:
    values = resolve(
        {"seed": 3, "name": "run-${seed}", "n": "${oc.decode:${oc.env:ALE_TEST_N,7}}", "rl": {"steps": "${seed}"}}, "f"
    )
    assert values.data == {"seed": 3, "name": "run-3", "n": 7, "rl": {"steps": 3}}
    assert values.public == {"seed": 3, "name": "run-3", "n": "${oc.decode:${oc.env:ALE_TEST_N,7}}", "rl": {"steps": 3}}
    assert os.environ.get("ALE_TEST_N") is None


@pytest.mark.parametrize("value", ["abc", "2026", "true", "1e-5", "0.25"])
def test_short_values_and_settings_are_not_looked_for_in_texts(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALE_TEST_SHORT", value)
    values = resolve({"name": "${oc.env:ALE_TEST_SHORT}"}, "f")
    assert values.public == {"name": "${oc.env:ALE_TEST_SHORT}"}
    assert values.redact(f"{value} and a b c") == f"{value} and a b c"


WAYS = {
    "as it is": "${oc.env:ALE_TEST_KEY}",
    "as a default": "${oc.env:ALE_TEST_NONE,${oc.env:ALE_TEST_KEY}}",
    "by a name that the environment gives": "${${oc.env:ALE_TEST_NAME}}",
    "by way of another": "so ${key}",
    "decoded": "${oc.decode:${oc.env:ALE_TEST_LIST}}",
    "a whole section": "${deep}",
    "beside what is no interpolation": r"\${key} ${.key}",
}


@pytest.mark.parametrize("way", WAYS)
def test_however_a_secret_came_it_is_written_as_the_file_had_it(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "tok-one-1234"
    monkeypatch.setenv("ALE_TEST_KEY", secret)
    monkeypatch.setenv("ALE_TEST_NAME", "key")
    monkeypatch.setenv("ALE_TEST_LIST", json.dumps([secret, "other"]))
    data = {
        "deep": {"items": [1, {"x": "${key}"}]},
        "key": "${oc.env:ALE_TEST_KEY}",
        "it": WAYS[way],
        "n": "costs \\${5}",
    }
    values = resolve(data, "f")
    assert secret in json.dumps(values.data["it"])
    for shown in (values.public, values.file):
        assert shown["it"] == WAYS[way]
        assert secret not in json.dumps(shown)
    assert (values.public["n"], values.file["n"]) == ("costs ${5}", r"costs \${5}")
    again = resolve(values.file, "f")
    assert (again.data, again.file) == (values.data, values.file)
    assert secret not in values.redact(f"refused: {secret}")


def test_an_interpolation_that_fails_is_told_without_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALE_TEST_KEY", SECRET)
    with pytest.raises(ConfigError, match="nope") as caught:
        resolve({"a": "${nope.${oc.env:ALE_TEST_KEY}}"}, "f")
    assert not traces(str(caught.value).encode())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text('se:"\\ {}', max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('se:" ', max_size=5), inner, max_size=3),
        max_leaves=8,
    )
)
def test_in_json_texts_are_redacted_and_keys_and_numbers_are_not(value: Any) -> None:
    def slow(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: item if key == "s" and isinstance(item, str) else slow(item) for key, item in value.items()}
        if isinstance(value, list):
            return [slow(item) for item in value]
        return redact(value) if isinstance(value, str) else value

    def redact(text: str) -> str:
        return text.replace("se", '${oc.env:"}')

    for text in (json.dumps(value), json.dumps(value, indent=1, ensure_ascii=False)):
        assert json.loads(redact_json(text, redact, {"s"})) == slow(value)


def test_settings_from_the_environment_spoil_no_record(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        f"run_dir: {tmp_path}\nname: plain\nseed: '${{oc.env:SEED}}'\ntasks: {{use: bash, families: [write]}}\n"
        "engine: {use: scripted, answers: ['${oc.env:WORD}', '${oc.env:OTHER}']}\ntrainer: null\neval: {episodes: 2}\n"
    )
    done = subprocess.run(
        [program(), "run", file, "--out", tmp_path / "out"],
        capture_output=True,
        check=False,
        timeout=120,
        text=True,
        env={**os.environ, "SEED": "2026", "WORD": "assistant", "OTHER": "heldout"},
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    with RunStore.open(tmp_path / "out") as store:
        kept = list(store.trajectories())
    assert len(kept) == 2
    assert {t.split for t in kept} == {"heldout"}
    assert {m.role for t in kept for s in t.sequences for m in s.messages} >= {"user", "assistant"}
    assert {m.content for t in kept for s in t.sequences for m in s.messages} & {"${oc.env:WORD}", "${oc.env:OTHER}"}
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["seed"] == 2026


def test_a_fault_in_the_code_is_shown_without_the_secret(leaky: Path) -> None:
    source = next(path for folder in sys.path if (path := Path(folder, "far_away", "__init__.py")).is_file())
    source.write_text(
        LEAKY.partition("        logging.")[0]
        + "        raise ExceptionGroup(self.config.token, [OSError(2, 'no', self.config.header), "
        "ValueError(self.config.header)])\n"
    )
    done = subprocess.run([program(), "run", leaky], capture_output=True, check=False, timeout=120)
    assert done.returncode == 1
    assert b"${oc.env:ALE_TEST_KEY}" in done.stderr
    assert not traces(done.stdout + done.stderr)
