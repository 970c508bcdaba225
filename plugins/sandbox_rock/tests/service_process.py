"""A whole service as its user starts it: `ale rock serve` in a process of its own, on a free port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ALE = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r}); from ale.cli.main import main; main()"
"""The command `ale`, also in a Python of another venv."""
START_S, END_S = 120.0, 120.0
"""Limits of what hangs: a machine that is busy may take ten times as long as usual."""
PATIENT = "worker_timeout_s: 20"
"""Settings of a service whose worker may be held up for a while."""
StartSandbox = Callable[..., Awaitable[Any]]
"""Starts a sandbox by ROCK's client, with settings of its own."""


class Command:
    """`ale rock ...`, running; `kill` ends it as a crash would."""

    def __init__(
        self,
        folder: Path,
        name: str,
        arguments: Sequence[str],
        env: Mapping[str, str] | None = None,
        python: str | Path = sys.executable,
    ) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [python, "-c", ALE, "rock", *arguments],
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for(self, line: str) -> str:
        """Return the rest of the line that it prints after `line`."""
        until = time.monotonic() + START_S
        while time.monotonic() < until and self.process.poll() is None:
            for found in self.log.read_text().splitlines():
                if found.startswith(line):
                    return found.removeprefix(line).strip()
            time.sleep(0.02)
        raise AssertionError(f"{line!r} was not printed: {self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()
        self.process.wait()

    @staticmethod
    def kill_process(pid: int) -> None:
        """End a process that it has started, by SIGKILL."""
        os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End it by SIGTERM, as a service manager does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"it did not end: {self.log.read_text()[-3000:]}") from None


class Service:
    """A service with a worker of this machine."""

    def __init__(self, url: str, folder: Path, headers: Mapping[str, str] | None = None) -> None:
        self.url, self.folder, self.headers = url, folder, dict(headers or {})

    def get(self, path: str) -> httpx.Response:
        """Ask the service."""
        return httpx.get(self.url + path, headers=self.headers, timeout=60)

    def post(self, path: str, body: object) -> httpx.Response:
        """Ask the service."""
        return httpx.post(self.url + path, json=body, headers=self.headers, timeout=300)

    def wait_for_worker(self) -> None:
        """Return when a worker has registered."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if any(worker["alive"] for worker in self.get("/apis/ale/v1/status").json()["workers"]):
                return
            time.sleep(0.05)
        raise AssertionError(f"no worker has registered. {self.logs()[-4000:]}")

    def sandboxes(self) -> set[str]:
        """Return the ids of the live sandboxes."""
        return {each["id"] for each in self.get("/apis/ale/v1/sandboxes").json()["sandboxes"]}

    def logs(self) -> str:
        """Return what its processes have printed."""
        return "\n".join(log.read_text(errors="replace") for log in sorted(self.folder.glob("*.log")))


@contextmanager
def serving(
    folder: Path, *options: str, headers: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None
) -> Iterator[Service]:
    """Serve with a worker of this machine, until the context ends."""
    (folder / "patient.yaml").write_text(PATIENT)
    command = Command(folder, "serve", ["serve", "--port", "0", "--settings", "patient.yaml", *options], env)
    try:
        service = Service(command.wait_for("ROCK service: "), folder, headers)
        if "none" not in options:
            service.wait_for_worker()
        yield service
    finally:
        command.stop()
