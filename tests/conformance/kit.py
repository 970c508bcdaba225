"""Runs the conformance kit as an author of plugins does, `pytest --pyargs ale_testing`, in a process of its own or in
this one.

In this process a run takes a tenth of the time: everything is imported already. What hangs at its end, and so has to be
killed, needs its own.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.fake_packages import packages_at
from support.forked_server import IMPORTS, forking_python

from ale_engines.server.python_environments import find_python

OPTIONS = ("-q", "--tb=native", "-p", "no:cacheprovider", "--pyargs", "ale_testing")
"""With Python's own tracebacks: in Python 3.11 pytest's reader of sources fails ("AST constructor recursion depth
mismatch") where another traceback is formatted meanwhile, such as that of a task which nobody awaited."""
ROOT_AGENT = "test_sandbox.py or test_sandbox_claims or test_sandbox_network or test_sandbox_reset"
"""Suites of what is not the same if the agent is root: its rights, its files, and what can be ended and removed."""
NOT_INSTALLED = "the environment of {0} is not installed: `ale engine install {0} --cpu`"
ALONE = [word for name in ("xdist", "timeout", "asyncio", "unraisableexception") for word in ("-p", f"no:{name}")]


def run_kit(
    where: Path, plugin: str, *options: str | Path, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The kit against one plugin, in a process of its own; `path` is a folder with packages of strangers."""
    command = [sys.executable, "-m", "pytest", *OPTIONS, "--rootdir", where, "--ale-plugin", plugin, *options]
    return subprocess.run(
        [*map(str, command)],
        cwd=where,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(path or "")},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=280,
        check=False,  # what it prints may be a file's name, which is bytes
    )


@dataclass(frozen=True)
class Outcome:
    """How a run of the kit in this process ended; `stdout` holds what went to standard error, too."""

    returncode: int
    stdout: str


def run_kit_here(where: Path, plugin: str, *options: str | Path, path: Path | None = None) -> Outcome:
    """The kit against one plugin, in this process."""
    output = io.StringIO()
    # What the outer run does for its tests (workers, timers, loops) is not to be done twice.
    arguments = [*OPTIONS, *ALONE, "--rootdir", where, "--ale-plugin", plugin, *options]
    with contextlib.ExitStack() as stack:
        if path is not None:
            stack.enter_context(packages_at(path))
        stack.enter_context(contextlib.chdir(where))
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(output))
        code = pytest.main([*map(str, arguments)])
    return Outcome(int(code), output.getvalue())


def assert_keeps_contract(
    plugin: str, settings: str, folder: Path, tasks: str | None = None, timeout_s: float = 120, only: str = ""
) -> None:
    """The plugin passes every test of the kit with these settings (YAML), and these tasks; none is skipped. `only` is
    pytest's expression for a part of the tests."""
    (folder / "settings.yaml").write_text(settings)
    more = [*(["--ale-tasks", tasks] if tasks is not None else []), *(["-k", only] if only else [])]
    done = run_kit_here(
        folder, plugin, "--ale-config", folder / "settings.yaml", *more, "--ale-timeout", str(timeout_s), "-rs"
    )
    assert done.returncode == 0, done.stdout[-4000:]
    counts = re.search(r"(\d+) passed", done.stdout)
    assert counts is not None
    installed = "which is installed into images" in done.stdout  # tests/test_agents.py runs those
    assert int(counts[1]) >= (13 if installed else 15), "a suite of a kind that was collected has more tests"
    assert "skipped" not in done.stdout


def require_server(engine: str) -> None:
    """Skip the test where the server's environment is not installed."""
    if find_python(engine, "cpu") is None:
        pytest.skip(NOT_INSTALLED.format(engine))


def assert_server_keeps_contract(engine: str, folder: Path) -> None:
    """The engine passes with servers of its own on the CPU, which import together what they need."""
    python = find_python(engine, "cpu")
    if python is None:
        pytest.skip(NOT_INSTALLED.format(engine))
    with forking_python(python, IMPORTS[engine]) as forking:
        settings = f"{{python: {forking}, device: cpu, dtype: float32, threads: 1, max_batch: 32}}"
        assert_keeps_contract(f"engine:{engine}", settings, folder, timeout_s=300)
