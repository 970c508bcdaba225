"""Sandboxes of a ROCK service keep their contract: through the client, the admin and a worker with local sandboxes, of
which it starts some ahead, or with containers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kit import assert_keeps_contract, run_kit_here
from service_process import serving
from support.sandbox_providers import must_answer


@pytest.mark.slow
@pytest.mark.bwrap
@pytest.mark.timeout(600)
def test_they_keep_their_contract(tmp_path: Path) -> None:
    must_answer("local")
    (tmp_path / "service").mkdir()
    with serving(tmp_path / "service", "--warm=1") as service:
        assert_keeps_contract("sandbox:rock", f"url: {service.url}", tmp_path)


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(600)
def test_they_keep_what_only_containers_can(tmp_path: Path) -> None:
    must_answer("docker")
    (tmp_path / "service").mkdir()
    with serving(tmp_path / "service", "--worker", "docker") as service:
        (worker,) = service.get("/apis/ale/v1/status").json()["workers"]
        assert "builds" in worker["capabilities"]
        (tmp_path / "settings.yaml").write_text(f"url: {service.url}")
        suites = ("-k", "test_sandbox_builds or test_sandbox_network")
        done = run_kit_here(tmp_path, "sandbox:rock", "--ale-config", tmp_path / "settings.yaml", *suites)
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"^9 passed", done.stdout, re.MULTILINE), done.stdout[-4000:]
