"""This module has the fixture that the end-to-end tests share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from ale_command import FINISH

from ale_testing.fake_packages import install as install

FIRST = (
    "tests/security/",
    "tests/conformance/test_our_",
    "tests/test_agents.py",
    "tests/test_sandbox_command.py",
    "tests/packaging/",
    "tests/conformance/",
)
"""What must not be disturbed by others, then what takes longest, so that all processes end at about the same time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in the order in which they are handed out; within a file nothing changes."""

    def rank(item: pytest.Item) -> int:
        return next((i for i, place in enumerate(FIRST) if item.nodeid.startswith(place)), len(FIRST))

    items.sort(key=rank)


@pytest.fixture
def run_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a run file whose runs go into the test's own folder."""

    def write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text.format(runs=tmp_path / "runs", finish=json.dumps(FINISH)))
        return path

    return write
