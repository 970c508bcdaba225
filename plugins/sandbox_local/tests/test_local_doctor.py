"""What `ale doctor` says about local sandboxes."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from ale_local import cgroups, doctor


@pytest.mark.bwrap
def test_a_machine_with_bubblewrap_starts_a_sandbox_and_keeps_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    open_files = len(os.listdir("/proc/self/fd"))
    found = {finding.name: finding for finding in doctor.check()}
    assert found["bubblewrap"].state == "ok"
    assert found["isolation"].state == "ok"
    assert found["isolation"].text.startswith("a sandbox starts, ")
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) <= open_files


def test_a_machine_without_bubblewrap_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(cgroups, "parents", lambda: {"memory": Path("/sys")})
    found = {finding.name: finding for finding in doctor.check()}
    assert found["bubblewrap"].state == found["isolation"].state == "missing"
    assert "apt-get install bubblewrap" in found["isolation"].mend
    assert found["control groups"].state == "missing"
    assert found["control groups"].text.startswith("memory can be used, so sandboxes have no limits")


def test_a_kernel_that_forbids_user_namespaces_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = tmp_path / "max_user_namespaces"
    setting.write_text("0\n")
    monkeypatch.setattr(doctor, "NAMESPACES", ((str(setting), "0"), (str(tmp_path / "absent"), "0")))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = {finding.name: finding for finding in doctor.check()}
    assert found["user namespaces"].text == f"forbidden to normal users: {setting} is 0"
