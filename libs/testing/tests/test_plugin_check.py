"""`ale plugins check` and `info` against plugins that do their worst on import: each is reported, none takes ALE
down."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from support.command_line import ale
from support.fake_packages import REWARD, Install
from support.temporary_files import nothing_left_in

from ale.registry.installed import list_plugins

LIMIT_S = "8"
"""For each import: what hangs takes it, and a busy machine may need some of it for the others."""
WORST = {
    "raises": ("raise RuntimeError('no such\\ndriver')", "RuntimeError: no such driver"),
    "ends": ("import os; os._exit(7)", "ended the process with exit code 7"),
    "kills": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended the process with exit code -9"),
    "exits": ("raise SystemExit(0)", "SystemExit"),
    "hangs": ("import time; time.sleep(600)", f"not done after {LIMIT_S} s"),
    "prints": (REWARD + "print('\\x1b[31mhello\\x00', flush=True)", "It prints on import"),
    "garbage": ("import os; os.write(1, bytes(range(256)) * 999); os._exit(0)", "exit code 0"),
    "deep": ("def f(): f()\nf()", "RecursionError"),
    "wrong": ("class Fixed: pass", "must be a class made from ale.specs.reward.Reward"),
    "nosuch": ("import no_such_module", "No module named 'no_such_module'"),
}


@pytest.fixture
def worst(install: Install) -> None:
    for name, (source, _) in WORST.items():
        install(f"worst-{name}", source, name=name)


@pytest.mark.usefixtures("worst")
def test_every_bad_import_is_reported_and_the_good_ones_are_still_checked() -> None:
    done = ale("plugins", "check", "--kind", "reward", "--json", "--timeout-s", LIMIT_S)
    found = {p["name"]: p for p in json.loads(done.stdout)}
    assert done.returncode == 1
    assert found["tests"]["ok"]
    for name, (_, reason) in WORST.items():
        assert not found[name]["ok"]
        assert reason in found[name]["problem"], name
        assert found[name]["problem"].isprintable()
    assert done.stderr == ""


@pytest.mark.usefixtures("worst")
def test_the_report_for_people_names_each_failure_and_counts_them() -> None:
    done = ale("plugins", "check", "--kind", "reward", "--timeout-s", LIMIT_S)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == f"{len(list_plugins('reward'))} checked, {len(WORST)} failed."
    assert "FAILED  reward 'ends' of worst-ends 2.1\n        Its import ended the process" in done.stdout


@pytest.mark.usefixtures("worst")
def test_listing_is_not_impressed() -> None:
    done = ale("plugins", "list", "--kind", "reward", "--json")
    assert done.returncode == 0
    assert {p["status"] for p in json.loads(done.stdout)} == {"ok"}


@pytest.mark.usefixtures("worst")
@pytest.mark.parametrize("name", ["raises", "ends", "exits", "wrong"])
def test_info_of_a_plugin_that_cannot_be_imported_is_a_sentence(name: str) -> None:
    done = ale("plugins", "info", "reward", name)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: reward '{name}' of worst-{name} 2.1: ")
    assert WORST[name][1] in done.stderr
    assert "Traceback" not in done.stderr


def test_what_an_import_started_ends_with_the_check(install: Install, tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    loop = f"import time\nwhile True:\n    open({str(mark)!r}, 'w').close(); time.sleep(0.05)"
    install("far-away", f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {loop!r}])\n" + REWARD)
    assert ale("plugins", "check", "--kind", "reward").returncode == 0
    mark.unlink(missing_ok=True)
    time.sleep(0.3)
    assert not mark.exists()


def test_temporary_files_of_an_import_end_with_the_check(install: Install, tmp_path: Path) -> None:
    install("far-away", "import tempfile\nKEPT = tempfile.TemporaryDirectory()\n" + REWARD)
    with nothing_left_in(tmp_path / "temporary"):
        assert ale("plugins", "check", "--kind", "reward").returncode == 0


def test_a_check_of_good_plugins_exits_with_0() -> None:
    done = ale("plugins", "check", "--kind", "tasks")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ok      tasks 'bash'" in done.stdout


@pytest.mark.parametrize(
    ("capabilities", "listed", "reason"),
    [
        ({"fast"}, ["fast"], "There is no capability 'fast' of kind reward."),
        ({"acme.fast"}, [], "Its class can do acme.fast, its ale-plugin.json says nothing; write the same into both,"),
        (set(), ["acme.fast"], "Its class can do nothing special, its ale-plugin.json says acme.fast;"),
        ({"acme.fast"}, ["acme.fast"], None),
    ],
)
def test_class_and_manifest_must_say_the_same_in_known_words(
    install: Install, capabilities: set[str], listed: list[str], reason: str | None
) -> None:
    about = {"kind": "reward", "name": "fixed", "capabilities": listed}
    source = REWARD + f"Fixed.capabilities = frozenset({sorted(capabilities)!r})\n"
    install("far-away", source, manifest={"api_version": ">=1.0,<1.2", "plugins": [about]})
    done = ale("plugins", "check", "--kind", "reward", "--json")
    (problem,) = [p["problem"] for p in json.loads(done.stdout) if p["name"] == "fixed"]
    assert (problem is None) == (reason is None)
    assert (reason or "") in (problem or "")
    assert done.returncode == (reason is not None)


def test_info_tells_summary_settings_capabilities_and_place() -> None:
    out = ale("plugins", "info", "engine", "torch").stdout
    assert out.startswith("engine torch: Samples from small models on the CPU or one GPU")
    assert "ale_engine_torch/engine.py (ale_engine_torch:TorchEngine)" in out
    assert "real_tokens: a model samples the tokens" in out
    assert "KEY" in out
    assert any(line.split()[:3] == ["max_batch", "int", "64"] for line in out.splitlines()), out


def test_two_hundred_plugins_and_a_broken_one_are_listed_without_an_import(install: Install) -> None:
    for i in range(200):
        install(f"dummy-{i}", "raise SystemExit('imported')", name=f"dummy-{i}")
    install("broken-one", name="broken", target="no_such_module:Fixed")
    done = ale("plugins", "list", "--json")
    found = {p["name"]: p for p in json.loads(done.stdout)}
    assert done.returncode == 0
    assert sum(p["status"] == "ok" for n, p in found.items() if n.startswith("dummy-")) == 200
    assert found["broken"]["status"] == "broken"
    assert found["broken"]["reason"] == "There is no module 'no_such_module'; reinstall broken-one."


def test_observers_are_checked_too(install: Install) -> None:
    hooked = "from ale.specs.events import hookimpl\n@hookimpl\ndef {}(run_id): ...\n"
    install("good-one", hooked.format("ale_run_finished"), kind="hooks", name="good", target="good_one")
    install("bad-one", hooked.format("ale_run_finnished"), kind="hooks", name="bad", target="bad_one")
    found = {p["name"]: p for p in json.loads(ale("plugins", "check", "--kind", "hooks", "--json").stdout)}
    assert found["good"]["ok"]
    assert "does not fit the hooks of ALE: unknown hook 'ale_run_finnished'" in found["bad"]["problem"]
