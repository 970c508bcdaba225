"""Which policy of a run is taken, where another command goes on from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ale.errors import ConfigError
from ale_train.checkpoints.saved_policies import before_rl, most_trained


def saved(run: Path, *places: str) -> None:
    for place in places:
        (run / place).mkdir(parents=True)
        (run / place / "config.json").write_text("{}")


def test_the_most_trained_policy_of_an_interrupted_run_is_its_newest_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, "model/initial", "model/cpt", "model/sft")
    assert most_trained(tmp_path) == tmp_path / "model/sft"
    saved(tmp_path, "checkpoints/step_9", "checkpoints/step_10", "checkpoints/step_2")
    assert most_trained(tmp_path) == tmp_path / "checkpoints/step_10"
    assert before_rl(tmp_path) == tmp_path / "model/sft"
    saved(tmp_path, "model/final")
    assert most_trained(tmp_path) == tmp_path / "model/final"


def test_a_run_interrupted_in_a_supervised_stage_has_the_newest_checkpoint_of_that_stage(tmp_path: Path) -> None:
    saved(tmp_path, "model/initial", "checkpoints/cpt_8")
    assert most_trained(tmp_path) == tmp_path / "checkpoints/cpt_8"
    saved(tmp_path, "model/cpt", "checkpoints/sft_5", "checkpoints/sft_10")
    assert most_trained(tmp_path) == tmp_path / "checkpoints/sft_10"
    saved(tmp_path, "model/sft")
    assert most_trained(tmp_path) == tmp_path / "model/sft"


def test_a_checkpoint_that_was_being_written_is_not_taken(tmp_path: Path) -> None:
    saved(tmp_path, "checkpoints/step_4", "checkpoints/.step_8.new", "checkpoints/.step_8.old", "checkpoints/step_x")
    (tmp_path / "checkpoints/step_6").mkdir()
    assert most_trained(tmp_path) == tmp_path / "checkpoints/step_4"


def test_a_run_without_a_policy_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no policy \(looked for model/final, model/sft, model/cpt, model/ini"):
        most_trained(tmp_path)
