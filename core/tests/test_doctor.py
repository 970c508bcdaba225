"""`ale doctor` ends and tells the truth, whatever a check, an import or a text does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from ale.cli import doctor
from ale.cli.doctor import Children, Finding, Section, check_imports, clean, run_check

CHECKS = """
import os, sys, time
from ale.cli.doctor import Finding
def good():
    print("noise")
    os.write(1, b"more noise")
    yield Finding("a", "ok", "well")
    yield Finding("b", "missing", "not there", "install it")
def raising():
    yield Finding("a", "ok", "well")
    raise SystemExit("no more")
def crashing():
    yield Finding("a", "ok", "well")
    sys.stderr.write("the last words\\n")
    sys.stderr.flush()
    os.kill(os.getpid(), 11)
def odd():
    yield 3
def hanging():
    yield Finding("a", "ok", "well")
    if os.fork() == 0:
        os.setsid()
        time.sleep(3)
        os._exit(0)
    time.sleep(600)
"""
WELL = Finding("a", "ok", "well")


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes modules that children can import."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "some_checks.py").write_text(CHECKS)
    return lambda name, source: (tmp_path / f"{name}.py").write_text(source) and None


def test_what_a_check_finds_is_reported_and_what_it_prints_is_not() -> None:
    assert run_check("some_checks:good", Children(30)) == [WELL, Finding("b", "missing", "not there", "install it")]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("raising", "the check failed: SystemExit: no more"),
        ("crashing", "the check was ended by SIGSEGV (the last words)"),
        ("hanging", "the check did not end within 2 s"),
        ("odd", "the check failed: AttributeError: 'int' object has no attribute 'state'"),
        ("nowhere", "the check failed: AttributeError: module 'some_checks' has no attribute 'nowhere'"),
    ],
)
def test_a_check_that_fails_keeps_what_it_has_found(name: str, fault: str) -> None:
    began = time.monotonic()
    *found, last = run_check(f"some_checks:{name}", Children(2 if name == "hanging" else 30))
    assert found == ([] if name in ("nowhere", "odd") else [WELL])
    assert last == Finding(f"some_checks:{name}", "broken", fault)
    assert time.monotonic() - began < 30, "nobody waits for what it has started"


def test_imports_go_on_after_one_that_ends_the_process_or_hangs(
    modules: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, source in (
        ("fine", "x = 1"),
        ("absent", "import no_such_library"),
        ("deadly", "import os; os._exit(9)"),
        ("slow", "import time; time.sleep(600)"),
        ("exiting", "raise SystemExit(3)"),
    ):
        modules(name, source)
    targets = [(f"ale-{name}", f"{name}:x") for name in ("fine", "absent", "deadly", "slow", "exiting", "fine")]
    monkeypatch.setattr(doctor, "imported_targets", lambda: targets)
    found = {finding.name: finding for finding in check_imports(Children(3))}
    assert list(found) == ["ale-absent", "ale-deadly", "ale-slow", "ale-exiting"]
    assert "absent:x cannot be imported: ModuleNotFoundError" in found["ale-absent"].text
    assert found["ale-absent"].mend == "pip install --force-reinstall ale-absent"
    assert found["ale-deadly"].text == "importing deadly:x ended with exit code 9"
    assert found["ale-slow"].text == "importing slow:x did not end within 3 s"
    assert "SystemExit: 3" in found["ale-exiting"].text
    monkeypatch.setattr(doctor, "imported_targets", lambda: targets[2:3] * 5)
    *deaths, last = check_imports(Children(30))
    assert (len(deaths), last) == (3, Finding("imports", "broken", "2 more were not tried"))
    monkeypatch.setattr(doctor, "imported_targets", lambda: targets[:1])
    assert check_imports(Children(30)) == [Finding("imports", "ok", "1 plugins and commands can be imported")]


def test_a_check_that_is_interrupted_ends_at_once() -> None:
    children, began = Children(600), time.monotonic()
    threading.Timer(1.0, children.stopped.set).start()
    assert run_check("some_checks:hanging", children)[-1].text == "the check was interrupted"
    assert time.monotonic() - began < 30


def test_a_report_has_no_secrets_and_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-12345678")
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.1:2376")
    monkeypatch.setenv("HOME", "/home/somebody")
    text = "sk-12345678 at tcp://10.0.0.1:2376\nhttps://me:pw@host/x /home/somebody/.cache /home/somebodyelse \x1b[31m"
    assert clean(text) == "$MY_API_KEY at $DOCKER_HOST https://***@host/x ~/.cache /home/somebodyelse  [31m"


def test_the_core_reports_the_machine_and_its_packages() -> None:
    machine = {finding.name: finding for finding in run_check("ale.cli.doctor_checks:check_machine", Children(60))}
    assert {"Python", "system", "CPUs", "memory", "disk of the work folder", "disk of the temporary files"} == {
        *machine
    }
    assert machine["Python"].state == "ok"
    packages = run_check("ale.cli.doctor_checks:check_packages", Children(60))
    assert any(
        "ale-core" in finding.text for finding in packages if finding.name == f"ALE {metadata.version('ale-core')}"
    )
    assert any("pydantic " in finding.text for finding in packages if finding.name == "libraries")


def test_a_library_of_another_version_is_broken(modules: Callable[[str, str], None], tmp_path: Path) -> None:
    info = tmp_path / "ale_core-9.0.dist-info"
    info.mkdir()
    needs = "Requires-Dist: pydantic>=900\nRequires-Dist: no-such-library; extra == 'x'\nRequires-Dist: absent-one>=1\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ale-core\nVersion: 9.0\n{needs}")
    broken = [
        finding
        for finding in run_check("ale.cli.doctor_checks:check_packages", Children(60))
        if finding.name == "ale-core"
    ]
    assert [finding.state for finding in broken] == ["broken", "broken"]
    assert "it needs pydantic>=900, but " in broken[0].text
    assert broken[1].text == "it needs absent-one>=1, but it is not installed"
    assert broken[1].mend == "pip install 'absent-one>=1'"


def test_the_report_is_text_or_json_and_its_exit_code_says_whether_something_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = [Section("one", (WELL, Finding("b", "missing", "no b", "install b")))]
    monkeypatch.setattr(doctor, "examine", lambda timeout_s: iter(sections))
    assert doctor.doctor() == 0
    assert capsys.readouterr().out == "one\n  ok      a: well\n  missing b: no b. Mend: install b\n\n"
    sections.append(Section("two", (Finding("c", "broken", "no c"),)))
    assert doctor.doctor(as_json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert [section["title"] for section in found] == ["one", "two"]
    assert found[1]["findings"] == [{"name": "c", "state": "broken", "text": "no c", "mend": ""}]
