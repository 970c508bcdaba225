"""The lab makes its runs with the command `ale` that is beside Python; starting it is not what is tested."""

from __future__ import annotations

import sys

import pytest
from support.forked_command import program


@pytest.fixture
def forked_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs forked from a process that has imported everything."""
    monkeypatch.setattr(sys, "executable", str(program().with_name("python")))
