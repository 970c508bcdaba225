"""What `ale serve` takes from a run folder or a model folder, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ale.errors import ConfigError
from ale_endpoint.serving.served_model import read_target

RUN = """
name: served
tasks: {use: a_plugin_that_is_not_installed}
engine: {use: torch, threads: 1, max_batch: 4}
trainer: {use: torch}
rollout: {temperature: 0.5, max_tokens: 24}
rl: {steps: 2}
"""


@pytest.fixture
def run(tmp_path: Path, model: Path) -> Path:
    """A run folder with an initial policy and two checkpoints."""
    folder = tmp_path / "run"
    for place in ("model/initial", "checkpoints/step_2", "checkpoints/step_10"):
        shutil.copytree(model, folder / place)
    (folder / "config.yaml").write_text(RUN)
    return folder


def test_a_run_gives_its_most_trained_policy_and_its_own_settings(run: Path) -> None:
    target = read_target(run)
    assert target.folder == run / "checkpoints/step_10"
    assert (target.name, target.title) == ("run", "policy at step 10 of run")
    assert target.config.engine.use == "torch"
    assert target.config.engine.settings == {"threads": 1, "max_batch": 4}
    assert target.config.rollout.temperature == 0.5
    assert (target.max_tokens, target.max_context) == (24, 1024)


@pytest.mark.parametrize(
    ("name", "place"),
    [("2", "checkpoints/step_2"), ("step_10", "checkpoints/step_10"), ("initial", "model/initial")],
)
def test_a_policy_of_the_run_can_be_named(run: Path, name: str, place: str) -> None:
    assert read_target(run, checkpoint=name).folder == run / place


def test_settings_and_engine_of_the_command_line_win(run: Path) -> None:
    target = read_target(run, overrides=["engine.max_batch=2", "rollout.temperature=0", "rollout.max_context=128"])
    assert target.config.engine.settings == {"threads": 1, "max_batch": 2}
    assert (target.config.rollout.temperature, target.max_context) == (0, 128)
    assert read_target(run, "scripted", overrides=["engine.random=true"]).config.engine.settings == {"random": True}


def test_a_model_folder_has_the_sampling_that_it_recommends_and_no_limits_of_a_run(model: Path, tmp_path: Path) -> None:
    target = read_target(model)
    assert (target.max_tokens, target.max_context, target.config.rollout.temperature) == (None, None, 1.0)
    folder = tmp_path / "recommended"
    shutil.copytree(model, folder)
    recommended = {"do_sample": True, "temperature": 0.7, "top_k": 20, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(recommended))
    found = read_target(folder, overrides=["rollout.top_k=5", "rollout.max_tokens=9"])
    assert (found.config.rollout.temperature, found.config.rollout.top_k, found.max_tokens) == (0.7, 5, 9)


def test_what_cannot_be_served_is_refused_with_a_sentence(run: Path, model: Path, tmp_path: Path) -> None:
    empty, broken, without = tmp_path / "empty", tmp_path / "broken", tmp_path / "without"
    empty.mkdir()
    shutil.copytree(model, broken)
    (broken / "model.safetensors").unlink()
    without.mkdir()
    (without / "config.yaml").write_text(RUN)
    refused: list[tuple[str, tuple[object, ...]]] = [
        ("There is no folder .*nowhere", (tmp_path / "nowhere",)),
        ("neither a run folder .* nor a model folder: it lacks config.json", (empty,)),
        (r"no whole model: it lacks weights \(model.safetensors\)", (broken,)),
        ("holds no policy yet", (without,)),
        ("--checkpoint final: .* holds no such policy.* It holds: initial, step_2, step_10", (run, None, "final")),
        ("--checkpoint 2: .* is no run folder", (model, None, "2")),
        ("there is no engine plugin 'vlm'", (run, "vlm")),
        ("'upstream' answers with messages of another model", (run, "upstream")),
        (
            r"engine.max_batchh: there is no such key. Did you mean 'max_batch'",
            (run, None, None, ["engine.max_batchh=1"]),
        ),
        ("rollout.temperature", (run, None, None, ["rollout.temperature=-1"])),
        ("'rl.steps=3' changes nothing where a policy is served", (run, None, None, ["rl.steps=3"])),
    ]
    for sentence, arguments in refused:
        with pytest.raises(ConfigError, match=sentence):
            read_target(*arguments)  # type: ignore[arg-type]


def test_secrets_of_the_settings_are_removed_from_messages(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_BATCH", "not-a-number-at-all")
    with pytest.raises(ConfigError) as error:
        read_target(run, overrides=["engine.max_batch=${oc.env:SECRET_BATCH}"])
    assert "not-a-number-at-all" not in str(error.value)
