"""Compares sessions with SWE-ReX and ROCK: make one, run `true` in it, make eight at once, run `true` in eight at once.

Theirs, on this machine and without any container: `swerex-remote` (SWE-ReX's server, as its deployments run it) and
`rocklet` (the agent that ROCK runs in each sandbox), asked over HTTP on 127.0.0.1; and SWE-ReX's `LocalRuntime` in a
separate process that measures the time itself, so that the figures contain no HTTP. Their session is a bash on the
host. For each new one they sleep for 0.3 s, in the server's event loop, so eight at once take eight times as long as
one. Ours: a local sandbox, isolated (namespaces, users, limits, a seccomp filter). A session of ours is a whole sandbox
of its own: it is started and a shell opened in it ("shell"), or nothing more than started ("exec": each command gets a
shell of its own), or it comes from a pool of warm sandboxes, reset and verified to be like new, and a shell is opened
("warm"). Their sessions start no sandbox; the row "a shell" compares the same work: one more shell in a running sandbox
or container. All other rows of docker start a container too.

Every round does the same on each side, one after the other. A ratio is their time divided by ours in one round, with
the quartiles over the rounds. Each command's exit code is checked, and each new session must compute something before
it counts. `HOME` is an empty folder for them, so that no user's `.bashrc` is timed.

They are installed by name into environments in a temporary folder that is removed at the end: `swe-rex`; `rl-rock` with
`fastapi uvicorn pexpect bashlex psutil` (its extra `rocklet` has these, and gem-llm and numpy, which the server does
not need). `--swerex PYTHON` and `--rocklet PYTHON` name interpreters that have them already."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from ale.errors import AleError
from ale.registry.choice import PluginChoice
from ale.registry.drivers import build_driver
from ale.specs.driver import DriverContext
from ale.specs.sandbox import Sandbox, SandboxSpec
from ale.specs.sandbox_protocols import Resets, Shell, Shells
from ale_sandbox_pool.config import PoolConfig
from ale_sandbox_pool.pool import SandboxPool

EIGHT = 8
SWEREX, ROCK = ["swe-rex==1.4.0"], ["rl-rock==1.11.0", "fastapi", "uvicorn", "pexpect", "bashlex", "psutil"]
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


class Ours(Side):
    """Our sessions: one sandbox each."""

    def __init__(self, name: str, provider: Any, shells: bool) -> None:
        self.name, self.provider, self.shells = f"{name}, {'shell' if shells else 'exec'}", provider, shells
        self.closing = AsyncExitStack()

    async def __aenter__(self) -> Ours:
        self.open = await asyncio.gather(*(self.session(self.closing) for _ in range(EIGHT)))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.closing.aclose()

    async def session(self, closing: AsyncExitStack) -> Sandbox | Shell:
        """Open one more session, which ends with `closing`."""
        box: Sandbox = await closing.enter_async_context(await self.provider.start_sandbox(SandboxSpec()))
        return await box.open_shell() if self.shells else box

    async def create(self, count: int) -> float:
        async with AsyncExitStack() as closing:
            began = time.perf_counter()
            made = await asyncio.gather(*(self.session(closing) for _ in range(count)))
            took = (time.perf_counter() - began) * 1e3
            for done in await asyncio.gather(*(run_command(session, SUM) for session in made)):
                assert (done.exit_code, done.output.strip()) == (0, SUMMED), (self.name, done)
            return took

    async def run(self, count: int) -> float:
        began = time.perf_counter()
        done = await asyncio.gather(*(run_command(session, "true") for session in self.open[:count]))
        took = (time.perf_counter() - began) * 1e3
        assert [each.exit_code for each in done] == [0] * count, done
        return took


class OurShells(Ours):
    """Our sessions: one shell each, in one running sandbox."""

    def __init__(self, name: str, provider: Any) -> None:
        super().__init__(name, provider, shells=True)
        self.name = f"{name}, a shell"

    async def __aenter__(self) -> Ours:
        self.box = await self.closing.enter_async_context(await self.provider.start_sandbox(SandboxSpec()))
        return await super().__aenter__()

    async def session(self, closing: AsyncExitStack) -> Shell:
        shell: Shell = await closing.enter_async_context(await self.box.open_shell())
        return shell


class Warm(Ours):
    """Our sessions: sandboxes from a pool."""

    def __init__(self, name: str, pool: SandboxPool) -> None:
        super().__init__(name, pool, shells=True)
        self.name = f"{name}, warm"

    async def create(self, count: int) -> float:
        for _ in range(400):  # until those of the last round have been reset
            if self.provider.slots.states()["idle"] >= count:
                break
            await asyncio.sleep(0.05)
        return await super().create(count)


def run_command(session: Any, command: str) -> Any:
    """Run a command in a session of ours."""
    return session.run(command) if isinstance(session, Shell) else session.exec(command)


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


def environment(folder: Path, name: str, packages: list[str]) -> str:
    """Make a virtual environment with `packages`; return its interpreter."""
    place = folder / name
    print(f"Installing {' '.join(packages)} ...", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    install = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*install, *packages], check=False).returncode:
        print(f"left out: pip could not install {packages[0]}; name an interpreter that has it with --{name} PYTHON")
        raise SystemExit
    return str(place / "bin" / "python")


async def ours(closing: AsyncExitStack, names: list[str]) -> list[Ours]:
    """Start our contenders, for the providers that answer."""
    sides: list[Ours] = []
    for name in names:
        provider: Any = build_driver("sandbox", PluginChoice(use=name), DriverContext())
        try:
            await closing.enter_async_context(provider)
        except AleError as error:
            print(f"{name}: left out: {error}")
            continue
        assert "isolated" in provider.capabilities, f"{name} does not isolate here, so there is nothing to compare"
        sides.append(Ours(name, provider, shells=False))
        if issubclass(provider.sandbox_type, Shells):
            sides += [Ours(name, provider, shells=True), OurShells(name, provider)]
            if issubclass(provider.sandbox_type, Resets):
                pool = await closing.enter_async_context(SandboxPool(provider, PoolConfig(warm=EIGHT)))
                sides.append(Warm(name, pool))
    return sides


async def measure(theirs: list[Theirs], mine: list[Ours], rounds: int) -> None:
    """Print one table per measurement."""
    print(f"{'milliseconds: median (quartiles)':<42}", *(f"{f'ratio to {side.name}':>28}" for side in theirs))
    for what, count, how in (
        ("make a session", 1, "create"),
        ("`true` in a session", 1, "run"),
        ("make eight sessions at once", EIGHT, "create"),
        ("`true` in eight sessions at once", EIGHT, "run"),
    ):
        print(f"\n{what}")
        sides: list[Side] = [*theirs, *mine]
        table = [[await getattr(side, how)(count) for side in sides] for _ in range(rounds)]
        columns = dict(zip((side.name for side in sides), zip(*table, strict=True), strict=True))
        for name, times in columns.items():
            line = f"  {name:<18} {spread(times, 1):<22}"
            if name in {side.name for side in mine}:
                for side in theirs:
                    ratios = [a / b for a, b in zip(columns[side.name], times, strict=True)]
                    line += f" {spread(ratios, 0):>28}"
            print(line.rstrip(), flush=True)


def spread(values: tuple[float, ...] | list[float], digits: int) -> str:
    """Format the median, and the quartiles in brackets."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


async def main() -> None:
    """Install, start, measure, clean up."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--swerex", metavar="PYTHON", help="an interpreter that has swe-rex")
    options.add_argument(
        "--rocklet", metavar="PYTHON", help="an interpreter that has rl-rock and its server's packages"
    )
    options.add_argument("--rounds", type=int, default=12, help="rounds (%(default)s)")
    options.add_argument("--ours", default="local,docker", help="providers, with commas between (%(default)s)")
    chosen = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ale-bench-"))
    try:
        swerex = chosen.swerex or environment(folder, "swerex", SWEREX)
        rocklet = chosen.rocklet or environment(folder, "rocklet", ROCK)
        theirs: list[Theirs] = [
            Server("SWE-ReX", [swerex, "-m", "swerex.server", "--auth-token", "benchmark"], folder),
            InProcess(swerex, folder),
            Server("rocklet", [rocklet, "-m", "rock.rocklet.server"], folder),
        ]
        async with AsyncExitStack() as closing:
            mine = await ours(closing, chosen.ours.split(","))
            for side in (*theirs, *mine):
                await closing.enter_async_context(side)
            await measure(theirs, mine, chosen.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    asyncio.run(main())
