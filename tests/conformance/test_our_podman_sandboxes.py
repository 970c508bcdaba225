"""Sandboxes in Podman containers keep their contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import assert_keeps_contract

from ale_testing.sandbox_providers import must_answer

pytestmark = [pytest.mark.slow, pytest.mark.podman, pytest.mark.timeout(600)]


@pytest.mark.parametrize("settings", ["", "user: root"])
def test_they_keep_their_contract(settings: str, tmp_path: Path) -> None:
    must_answer("podman")
    assert_keeps_contract("sandbox:podman", settings, tmp_path)
