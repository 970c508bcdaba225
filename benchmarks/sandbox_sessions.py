"""Sessions beside SWE-ReX and ROCK: make one, run `true` in it, make eight at once, run `true` in eight at once.

Theirs, on this machine and without any container: `swerex-remote` (SWE-ReX's server, as its deployments run it) and
`rocklet` (the agent that ROCK runs in each sandbox), asked over HTTP on 127.0.0.1; and SWE-ReX's `LocalRuntime` in a
process of its own, timed in there, so that no HTTP is in the figures. A session of theirs is a bash on the host. For each
new one they sleep for 0.3 s, in the server's event loop, so eight at once take eight times as long as one.
Ours: a local sandbox, isolated (namespaces, users, limits, a seccomp filter). A session of ours is a whole sandbox of its
own: it is started and a shell opened in it ("shell"), or nothing more than started ("exec": each command gets a shell of its
own), or it comes from a pool of warm sandboxes, reset and shown to be as new, and a shell is opened ("warm"). What theirs
do, who start no sandbox at all, is the row "a shell": one more shell in a sandbox or container that runs. A row of docker
that is not that one starts a container too.

Every round does the same on each side, one after the other; a ratio is theirs through ours in one round, with the quartiles
over the rounds. Each command's exit code is looked at, and each new session must compute something before it counts.
`HOME` is an empty folder for them, so that nobody's `.bashrc` is timed.

They are installed by name into environments in a temporary folder that is removed at the end: `swe-rex`; `rl-rock` with
`fastapi uvicorn pexpect bashlex psutil` (its extra `rocklet` has these, and gem-llm and numpy, which the server does not
need). `--swerex PYTHON` and `--rocklet PYTHON` name interpreters that have them already.
"""

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

from ale.config_base import PluginChoice
from ale.errors import AleError
from ale.plugins import build_driver
from ale.rollout.pool import SandboxPool
from ale.run_config import PoolConfig
from ale.specs.driver import DriverContext
from ale.specs.sandbox import Sandbox, SandboxSpec, Shell

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
    """Someone's sessions. `async with` keeps eight open, in which `run` runs."""

    name: str

    @abstractmethod
    async def create(self, count: int) -> float:
        """Milliseconds until `count` more sessions are there, all begun at once. Tried and closed when the clock has stopped."""

    @abstractmethod
    async def run(self, count: int) -> float:
        """Milliseconds of `true`, in `count` of the open sessions at once."""

    async def __aenter__(self) -> Side:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


class Theirs(Side):
    """Sessions by name; what is asked, and how, is the same for SWE-ReX and ROCK."""

    def __init__(self) -> None:
        self.made = 0

    @abstractmethod
    async def call(self, what: str, sessions: list[str], command: str = "") -> tuple[float, list[dict[str, Any]]]:
        """Ask for the same in each of the sessions, at once: milliseconds, and the answers."""

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
    """A server of theirs, started here and ended here."""

    def __init__(self, name: str, program: list[str], folder: Path) -> None:
        super().__init__()
        self.name, self.program, self.folder = name, program, folder

    async def __aenter__(self) -> Server:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = started([*self.program, "--host", "127.0.0.1", "--port", str(self.port)], self.folder)
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
    """SWE-ReX without its server; the time is what its own process measures."""

    name = "SWE-ReX in process"

    def __init__(self, python: str, folder: Path) -> None:
        super().__init__()
        self.command, self.folder = [python, "-c", IN_PROCESS], folder

    async def __aenter__(self) -> InProcess:
        self.process = started(self.command, self.folder)
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
    """A sandbox a session."""

    def __init__(self, name: str, provider: Any, shells: bool) -> None:
        self.name, self.provider, self.shells = f"{name}, {'shell' if shells else 'exec'}", provider, shells
        self.closing = AsyncExitStack()

    async def __aenter__(self) -> Ours:
        self.open = await asyncio.gather(*(self.session(self.closing) for _ in range(EIGHT)))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.closing.aclose()

    async def session(self, closing: AsyncExitStack) -> Sandbox | Shell:
        """One more, ended with `closing`."""
        box: Sandbox = await closing.enter_async_context(await self.provider.start_sandbox(SandboxSpec()))
        return await box.open_shell() if self.shells else box

    async def create(self, count: int) -> float:
        async with AsyncExitStack() as closing:
            began = time.perf_counter()
            made = await asyncio.gather(*(self.session(closing) for _ in range(count)))
            took = (time.perf_counter() - began) * 1e3
            for done in await asyncio.gather(*(runs(session, SUM) for session in made)):
                assert (done.exit_code, done.output.strip()) == (0, SUMMED), (self.name, done)
            return took

    async def run(self, count: int) -> float:
        began = time.perf_counter()
        done = await asyncio.gather(*(runs(session, "true") for session in self.open[:count]))
        took = (time.perf_counter() - began) * 1e3
        assert [each.exit_code for each in done] == [0] * count, done
        return took


class OurShells(Ours):
    """A shell a session, in one sandbox that runs already."""

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
    """Sandboxes from a pool."""

    def __init__(self, name: str, pool: SandboxPool) -> None:
        super().__init__(name, pool, shells=True)
        self.name = f"{name}, warm"

    async def create(self, count: int) -> float:
        for _ in range(400):  # until those of the last round have been reset
            if self.provider.slots.states()["idle"] >= count:
                break
            await asyncio.sleep(0.05)
        return await super().create(count)


def runs(session: Any, command: str) -> Any:
    """A command in a session of ours."""
    return session.run(command) if isinstance(session, Shell) else session.exec(command)


def started(command: list[str], folder: Path) -> subprocess.Popen[str]:
    """A process of theirs, in a session of its own, with an empty home."""
    home = Path(tempfile.mkdtemp(prefix="home-", dir=folder))
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE if command[1] == "-c" else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, text=True, cwd=home, env=environment, start_new_session=True,
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> None:
    """End what `started` started. Its shells hang at terminals of its own, so they end with it."""
    process.send_signal(signal.SIGKILL)
    process.communicate()


def environment(folder: Path, name: str, packages: list[str]) -> str:
    """The interpreter of a new virtual environment with `packages`."""
    place = folder / name
    print(f"Installing {' '.join(packages)} ...", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    install = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *packages], check=True)
    return str(place / "bin" / "python")


async def ours(closing: AsyncExitStack, names: list[str]) -> list[Ours]:
    """Our sides, of the providers that answer."""
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
        if "shell" in provider.capabilities:
            sides += [Ours(name, provider, shells=True), OurShells(name, provider)]
            if "reset" in provider.capabilities:
                pool = await closing.enter_async_context(SandboxPool(provider, PoolConfig(warm=EIGHT)))
                sides.append(Warm(name, pool))
    return sides


async def measure(theirs: list[Theirs], mine: list[Ours], rounds: int) -> None:
    """Print one table for each thing that is done."""
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
    """The median, and the quartiles in brackets."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


async def main() -> None:
    """Install, start, measure, take away."""
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
        rocklet = chosen.rocklet or environment(folder, "rock", ROCK)
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
