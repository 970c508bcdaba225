"""The page docs/environments.md is followed to the letter."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_code_blocks import ROOT, run_commands


@pytest.mark.slow
def test_its_commands_run_one_after_the_other(tmp_path: Path) -> None:
    run_commands(ROOT / "docs" / "environments.md", tmp_path)
