"""A run whose model is a name: validated and run from the cache without a network, or refused with a sentence."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ale_command import TINY, ale_in_a_process, summary_of

from ale_train.config.scratch_model import ScratchModel
from ale_train.models.scratch import write_scratch_model

RunFile = Callable[[str], Path]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TEXTS = ["ls -la | wc -l", "an agent acts", '{"name": "shell"}'] * 4
NO_TRAINING = ("sft=null", "model.scratch=null", "rl=null", "trainer=null", "eval.episodes=2")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of `team/small` in a cache of the test's own; nobody answers at the address of the hub."""
    for name in ("HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    folder = tmp_path / "home" / "hub" / "models--team--small"
    snapshot = folder / "snapshots" / COMMIT
    shape = ScratchModel.model_validate({"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "vocab_size": 320})
    write_scratch_model(shape, snapshot, TEXTS, 1)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    return folder


def test_a_name_in_the_cache_is_validated_and_run_without_a_network(run_file: RunFile, repository: Path) -> None:
    file, name = run_file(TINY), "model.path=team/small"
    valid = ale_in_a_process("config", "validate", file, *NO_TRAINING, name)
    assert (valid.returncode, valid.stdout) == (0, f"tasks: 256 held out\n{file} is valid.\n"), valid.stderr
    done = ale_in_a_process("run", file, *NO_TRAINING, name)
    assert summary_of(done)["status"] == "completed"
    assert f"The model team/small is {repository / 'snapshots' / COMMIT}." in done.stderr
    run = Path(done.stdout.splitlines()[-1]).parent
    assert "path: team/small" in (run / "config.yaml").read_text(), "a run of this file again has the same model"
    taken = ale_in_a_process("run", file, "--only", "rollout", *NO_TRAINING[:2], "trainer=null", "rl.steps=1", name)
    assert taken.returncode == 0, taken.stderr
    dump = Path(taken.stdout.splitlines()[-1]).parent
    assert (dump / "model" / "initial" / "model.safetensors").is_file(), "the half of the loop has the folder too"


def test_a_name_that_is_not_here_and_a_misspelt_folder_are_refused_before_the_run(
    run_file: RunFile, repository: Path, tmp_path: Path
) -> None:
    file = run_file(TINY)
    shutil.rmtree(repository)
    for command in (("config", "validate"), ("run",)):
        done = ale_in_a_process(*command, file, *NO_TRAINING, "model.path=team/small")
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert "team/small is not whole in the cache" in line
        assert "http://127.0.0.1:9 cannot be reached" in line
    (tmp_path / "model").mkdir()
    done = ale_in_a_process("config", "validate", file, *NO_TRAINING, "model.path=./modle", cwd=tmp_path)
    assert "there is no folder modle. Did you mean the folder model?" in done.stderr
    assert not os.path.exists(tmp_path / "runs")
