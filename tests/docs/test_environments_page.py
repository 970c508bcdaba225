"""The page docs/environments.md is followed, its longest runs in few steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_code_blocks import ROOT, run_commands


@pytest.mark.slow
def test_its_commands_run_one_after_the_other(tmp_path: Path) -> None:
    # Training to the end would take minutes of two cores: what it ends at is not what is tested here.
    short = {"ale run run.yaml": "sft.steps=4 rl.steps=2 eval.episodes=8"}
    run_commands(ROOT / "docs" / "environments.md", tmp_path, short)
