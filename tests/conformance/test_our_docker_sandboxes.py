"""Sandboxes in Docker containers keep their contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import ROOT_AGENT, assert_keeps_contract
from support.sandbox_providers import must_answer

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(600)]


@pytest.mark.parametrize("suites", ["", ROOT_AGENT], ids=["docker", "docker as root"])
def test_they_keep_their_contract(suites: str, tmp_path: Path) -> None:
    must_answer("docker")
    assert_keeps_contract("sandbox:docker", "user: root" if suites else "", tmp_path, only=suites)
