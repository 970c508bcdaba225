"""Sessions of SWE-ReX and of ROCK, on this machine, to be measured beside ours.

`Server` is SWE-ReX's or ROCK's server, asked over HTTP; `InProcess` is SWE-ReX's `LocalRuntime` in a process that
measures the time itself. Both have the same requests: `create_session`, `run_in_session`, `close_session`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

EIGHT = 8
SUM, SUMMED = "echo $((6 * 7))", "42"
IN_PROCESS = """
import asyncio, json, sys, time
from swerex.runtime.abstract import BashAction, CloseBashSessionRequest, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime
runtime = LocalRuntime()
calls = {
    "create_session": lambda session, command: runtime.create_session(CreateBashSessionRequest(session=session)),
    "close_session": lambda session, command: runtime.close_session(CloseBashSessionRequest(session=session)),
    "run_in_session": lambda session, command: runtime.run_in_session(BashAction(session=session, command=command)),
}
async def main():
    for line in sys.stdin:
        what, sessions, command = json.loads(line)
        began = time.perf_counter()
        answers = await asyncio.gather(*(calls[what](session, command) for session in sessions))
        took = (time.perf_counter() - began) * 1e3
        print("ANSWER" + json.dumps([took, [answer.model_dump() for answer in answers]]), flush=True)
asyncio.run(main())
"""


class Side(ABC):
    """One contender's sessions. `async with` keeps eight open, in which `run` runs."""

    name: str

    @abstractmethod
    async def create(self, count: int) -> float:
        """Measure the milliseconds until `count` more sessions, begun at once, are ready. They are tested and closed
        after the clock has stopped."""

    @abstractmethod
    async def run(self, count: int) -> float:
        """Measure the milliseconds of `true` in `count` of the open sessions at once."""

    async def __aenter__(self) -> Side:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


class Theirs(Side):
    """Sessions by name; SWE-ReX and ROCK have the same requests."""

    def __init__(self) -> None:
        self.made = 0

    @abstractmethod
    async def call(self, what: str, sessions: list[str], command: str = "") -> tuple[float, list[dict[str, Any]]]:
        """Send the same request to each of the sessions at once; return milliseconds and the answers."""

    async def __aenter__(self) -> Theirs:
        self.open = [f"open-{i}" for i in range(EIGHT)]
        await self.call("create_session", self.open)
        return self

    async def create(self, count: int) -> float:
        self.made += 1
        names = [f"s{self.made}-{i}" for i in range(count)]
        took, _ = await self.call("create_session", names)
        for answer in (await self.call("run_in_session", names, SUM))[1]:
            assert (answer["exit_code"], answer["output"].strip()) == (0, SUMMED), answer
        await self.call("close_session", names)
        return took

    async def run(self, count: int) -> float:
        took, answers = await self.call("run_in_session", self.open[:count], "true")
        assert [answer["exit_code"] for answer in answers] == [0] * count, answers
        return took


class Server(Theirs):
    """Their server, which this script starts and stops."""

    def __init__(self, name: str, program: list[str], folder: Path) -> None:
        super().__init__()
        self.name, self.program, self.folder = name, program, folder

    async def __aenter__(self) -> Server:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = start_process([*self.program, "--host", "127.0.0.1", "--port", str(self.port)], self.folder)
        until = time.monotonic() + 60
        while not await asyncio.to_thread(self.alive):
            assert self.process.poll() is None, f"{self.name} ended"
            assert time.monotonic() < until, f"{self.name} does not start"
            await asyncio.sleep(0.1)
        await super().__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        end(self.process)

    def alive(self) -> bool:
        try:
            self.ask("is_alive", None)
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def ask(self, path: str, body: dict[str, Any] | None) -> Any:
        """One request; it blocks."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "X-API-Key": "benchmark"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", data, headers)
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)

    async def call(self, what: str, sessions: list[str], command: str = "") -> tuple[float, list[dict[str, Any]]]:
        more = {"action_type": "bash", "command": command} if command else {"session_type": "bash"}
        bodies = [{"sandbox_id": "benchmark", "session": session, **more} for session in sessions]
        began = time.perf_counter()
        answers = await asyncio.gather(*(asyncio.to_thread(self.ask, what, body) for body in bodies))
        return (time.perf_counter() - began) * 1e3, list(answers)


class InProcess(Theirs):
    """SWE-ReX without its server; its own process measures the time."""

    name = "SWE-ReX in process"

    def __init__(self, python: str, folder: Path) -> None:
        super().__init__()
        self.command, self.folder = [python, "-c", IN_PROCESS], folder

    async def __aenter__(self) -> InProcess:
        self.process = start_process(self.command, self.folder)
        await super().__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        end(self.process)

    async def call(self, what: str, sessions: list[str], command: str = "") -> tuple[float, list[dict[str, Any]]]:
        return await asyncio.to_thread(self.ask, [what, sessions, command])

    def ask(self, request: list[Any]) -> tuple[float, list[dict[str, Any]]]:
        """One request; it blocks."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("ANSWER"):
                took, answers = json.loads(line.removeprefix("ANSWER"))
                return took, answers
        raise AssertionError("SWE-ReX's process ended")


def start_process(command: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start a process of theirs in its own process session, with an empty home."""
    home = Path(tempfile.mkdtemp(prefix="home-", dir=folder))
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if command[1] == "-c" else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=home,
        env=environment,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    """End a process of theirs. Its shells use terminals of that process, so they end with it."""
    process.send_signal(signal.SIGKILL)
    process.communicate()


def make_environment(folder: Path, name: str, packages: list[str]) -> str:
    """Make a virtual environment with `packages`; return its interpreter."""
    place = folder / name
    print(f"Installing {' '.join(packages)} ...", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    install = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*install, *packages], check=False).returncode:
        print(f"left out: pip could not install {packages[0]}; name an interpreter that has it with --{name} PYTHON")
        raise SystemExit
    return str(place / "bin" / "python")
