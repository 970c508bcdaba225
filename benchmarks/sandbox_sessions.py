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
import shutil
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from contenders.sessions import (
    EIGHT,
    SUM,
    SUMMED,
    InProcess,
    Server,
    Side,
    Theirs,
    make_environment,
)

from ale.config.pool import PoolConfig
from ale.errors import AleError
from ale.registry.drivers import build_driver
from ale.rollout.sandbox_pool.pool import SandboxPool
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.sandbox import Sandbox, SandboxSpec
from ale.specs.sandbox_protocols import Resets, Shell, Shells

SWEREX, ROCK = ["swe-rex==1.4.0"], ["rl-rock==1.11.0", "fastapi", "uvicorn", "pexpect", "bashlex", "psutil"]


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
        swerex = chosen.swerex or make_environment(folder, "swerex", SWEREX)
        rocklet = chosen.rocklet or make_environment(folder, "rocklet", ROCK)
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
