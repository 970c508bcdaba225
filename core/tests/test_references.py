"""Secrets from the environment: used, and never written into the run folder, logs or messages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from strangers import Install

from ale.config import load_run_config
from ale.errors import ConfigError
from ale.references import resolve

SECRET = 'sk-"größe"/é\\x'
RUN = """
name: secret
run_dir: {runs}
tasks: {{use: bash, families: [write]}}
engine: {{use: scripted, answers: [x]}}
trainer: null
eval: {{episodes: 2}}
reward: {{use: fixed, token: "${{oc.env:ALE_TEST_KEY}}", header: "Bearer ${{reward.token}} ${{oc.env:ALE_TEST_NONE,'a b'}}"}}
observers: [audit_log, tensorboard]
rollout: {{max_resamples: 0}}
"""
LEAKY = """
from ale.errors import TaskError
from ale.specs.driver import PluginConfig
from ale.specs.reward import Reward
from pydantic import Field
import logging
class Fixed(Reward):
    api_version = ">=1.1,<1.3"
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
    assert loaded.values.public["reward"]["header"] == "Bearer ${oc.env:ALE_TEST_KEY} ${oc.env:ALE_TEST_NONE,'a b'}"
    assert not traces(loaded.to_yaml().encode())


def test_what_is_written_loads_again_to_the_same_run(leaky: Path, tmp_path: Path) -> None:
    loaded = load_run_config(leaky, ["name=price", "eval.split=heldout", r"scaffold.system_prompt='costs \${5} $x'"])
    again = tmp_path / "again.yaml"
    again.write_text(loaded.to_yaml())
    assert load_run_config(again).run == loaded.run
    assert loaded.run.scaffold.settings["system_prompt"] == "costs ${5} $x"  # type: ignore[union-attr]


def test_a_run_that_tells_its_secret_everywhere_leaves_it_nowhere(leaky: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("ale"), "run", leaky], capture_output=True, check=False, timeout=120
    )
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
    assert values.public == {"seed": 3, "name": "run-3", "n": "${oc.env:ALE_TEST_N,7}", "rl": {"steps": 3}}
    assert os.environ.get("ALE_TEST_N") is None


def test_short_values_are_not_looked_for_in_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALE_TEST_SHORT", "abc")
    values = resolve({"name": "${oc.env:ALE_TEST_SHORT}"}, "f")
    assert values.public == {"name": "${oc.env:ALE_TEST_SHORT}"}
    assert values.redact("abc and a b c") == "abc and a b c"
