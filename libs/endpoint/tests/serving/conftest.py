"""A small model, and `ale serve` as a user runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from ale_testing.tiny_model import write_tiny_model

ALE = Path(sys.executable).with_name("ale")
READY = "Ctrl-C ends it."


class Served:
    """A running `ale serve`: where it listens, what it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.printed = ""

    def wait_until_ready(self) -> None:
        """Read until the server says that it listens."""
        assert self.process.stdout is not None
        while READY not in self.printed:
            line = self.process.stdout.readline()
            assert line, f"it ended: {self.printed}"
            self.printed += line

    @property
    def origin(self) -> str:
        found = re.search(r"listening at  (http://\S+)/v1 ", self.printed)
        assert found is not None, self.printed
        return found[1]

    @property
    def curl(self) -> str:
        """The call that the server prints, as one pastes it."""
        found = re.search(r"^try +(curl .*)$", self.printed, re.MULTILINE)
        assert found is not None, self.printed
        return found[1]

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send a signal and return the exit code. None of its processes is left."""
        family = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=120)
        self.printed += rest
        assert "Traceback" not in self.printed, self.printed
        _, left = psutil.wait_procs(family, timeout=60)
        assert not left
        return self.process.returncode


@contextmanager
def start_serving(*arguments: str | Path, **variables: str) -> Iterator[Served]:
    """Run `ale serve` with these arguments while the block lasts."""
    command = [str(ALE), "serve", *map(str, arguments)]
    with subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield Served(process)
        finally:
            process.kill()


@pytest.fixture
def serving() -> Callable[..., Any]:
    """Starts `ale serve` with arguments and environment variables, as a context."""
    return start_serving


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a decoder of random weights and 256 tokens of context."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(folder)
    return folder
