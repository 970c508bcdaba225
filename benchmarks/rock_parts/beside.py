"""ROCK's `rocklet`, SWE-ReX's server and our whole service, which do the same, one after the other, in each round.

Theirs is the agent in a sandbox alone, asked over HTTP on 127.0.0.1: no admin, no worker, and a bash on the host in
place of an isolated sandbox. Ours is asked in the same way, by the same HTTP client, through admin, worker and one
local sandbox; "ours, ROCK's client" is the same through the unmodified client of `rl-rock`, in a process of its own,
which opens a connection for each request. All sessions of a side are in one sandbox, as a rocklet has them. A side
that fails in a round has no time in it; why is printed, and the other sides go on.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Self

import aiohttp
from contenders.sessions import SUM, SUMMED, end, start_process
from rock_parts.service import ROCK, Service, spread

MIB = 1 << 20
ANSWER_S = 120.0
WHAT = {"create": "create a session", "run": "`true` in a session", "execute": "execute", "upload": "upload 1 MiB"}


class Side(ABC):
    """A contender. Each method does its thing `count` times at once and returns the milliseconds until all are done."""

    name: str

    @abstractmethod
    async def measure(self, what: str, count: int) -> float:
        """Measure one of `WHAT`. Raises one of `FAILURES`."""


class OverHttp(Side):
    """A server with ROCK's routes; `base` is the path before them."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most, self.made = name, most, 0
        self.base, self.sandbox_id, self.folder = "", "benchmark", "/tmp"
        self.closing = AsyncExitStack()

    async def connect(self, url: str) -> None:
        """Open the client, and the sessions in which `run` runs."""
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=ANSWER_S)
        session = aiohttp.ClientSession(url, connector=connector, timeout=timeout, headers={"X-API-Key": "benchmark"})
        self.http = await self.closing.enter_async_context(session)

    async def open_sessions(self) -> None:
        """Open the sessions in which `run` runs, and check that uploads arrive whole."""
        for i in range(self.most):
            await self.create(f"open-{i}")
        await self.send_file(0)
        size = await self.post("/execute", {"command": ["stat", "-c", "%s", self.target(0)]})
        assert size["stdout"].strip() == str(MIB), (self.name, size)

    async def __aexit__(self, *exc: object) -> None:
        await self.closing.aclose()

    async def post(self, path: str, body: Any, **files: Any) -> dict[str, Any]:
        """Send one request."""
        asked: dict[str, Any] = files or {"json": {"sandbox_id": self.sandbox_id, **body}}
        async with self.http.post(self.base + path, **asked) as response:
            assert response.status == 200, (self.name, path, response.status, (await response.text())[:300])
            answer: dict[str, Any] = await response.json()
        if "status" in answer:
            assert answer["status"] == "Success", (self.name, path, answer)
            answer = answer["result"]
        return answer

    async def measure(self, what: str, count: int) -> float:
        self.made += 1
        names = [f"s{self.made}-{i}" for i in range(count)]
        calls: list[Coroutine[Any, Any, dict[str, Any]]] = {
            "create": lambda: [self.create(name) for name in names],
            "run": lambda: [self.run(f"open-{i}", "true") for i in range(count)],
            "execute": lambda: [self.post("/execute", {"command": ["true"]}) for _ in range(count)],
            "upload": lambda: [self.send_file(i) for i in range(count)],
        }[what]()
        began = time.perf_counter()
        answers = await asyncio.gather(*calls)
        took = (time.perf_counter() - began) * 1e3
        if what == "create":  # it must compute something before it counts
            for answer in await asyncio.gather(*(self.run(name, SUM) for name in names)):
                assert (answer["exit_code"], answer["output"].strip()) == (0, SUMMED), (self.name, answer)
            for name in names:
                await self.close_session(name)
        elif what != "upload":
            assert [answer["exit_code"] for answer in answers] == [0] * count, (self.name, answers)
        return took

    async def create(self, session: str) -> dict[str, Any]:
        """Create a session."""
        return await self.post("/create_session", {"session_type": "bash", "session": session})

    async def close_session(self, session: str) -> None:
        """Close a session."""
        await self.post("/close_session", {"session_type": "bash", "session": session})

    async def run(self, session: str, command: str) -> dict[str, Any]:
        """Run a command in a session."""
        return await self.post("/run_in_session", {"action_type": "bash", "session": session, "command": command})

    def target(self, number: int) -> str:
        """Return the path of an upload."""
        return f"{self.folder}/upload-{number}"

    async def send_file(self, number: int) -> dict[str, Any]:
        """Upload 1 MiB."""
        form = aiohttp.FormData()
        form.add_field("sandbox_id", self.sandbox_id)
        form.add_field("target_path", self.target(number))
        form.add_field("file", bytes(MIB), filename="file", content_type="application/octet-stream")
        return await self.post("/upload", None, data=form)


class Theirs(OverHttp):
    """A server of theirs, which `async with` starts and ends."""

    def __init__(self, name: str, program: list[str], folder: Path, most: int) -> None:
        super().__init__(name, most)
        self.program, self.folder_of_process = program, folder

    async def __aenter__(self) -> Self:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = start_process([*self.program, "--host", "127.0.0.1", "--port", str(port)], self.folder_of_process)
        self.closing.callback(end, process)
        try:
            await self.wait_until_ready(process, port)
        except BaseException:
            await self.closing.aclose()
            raise
        return self

    async def wait_until_ready(self, process: subprocess.Popen[str], port: int) -> None:
        """Connect, and open the sessions in which `run` runs."""
        home = self.folder_of_process / f"uploads-{port}"
        home.mkdir()
        self.folder = str(home)
        await self.connect(f"http://127.0.0.1:{port}")
        until = time.monotonic() + 60
        while True:
            try:
                async with self.http.get("/is_alive") as response:
                    response.raise_for_status()
                    break
            except aiohttp.ClientError:
                assert process.poll() is None, f"{self.name} ended"
                assert time.monotonic() < until, f"{self.name} does not start"
                await asyncio.sleep(0.1)
        await self.open_sessions()

    async def close_session(self, session: str) -> None:
        """Close a session. On a busy machine its shell may not end in the half second that it gets; that is no failure
        of a measurement."""
        with suppress(*FAILURES):
            await super().close_session(session)


class Ours(OverHttp):
    """Our service, through admin, worker and sandbox."""

    def __init__(self, service: Service, most: int) -> None:
        super().__init__("ours", most)
        self.service, self.base = service, ROCK

    async def __aenter__(self) -> Self:
        await self.connect(self.service.url)
        self.sandbox_id = await self.service.start(memory="1g", disk="512m")
        await self.open_sessions()
        return self


class OursBySdk(Side):
    """The same by ROCK's own client, in a process of its own."""

    def __init__(self, service: Service, most: int) -> None:
        self.name, self.service, self.most = "ours, ROCK's client", service, most

    async def __aenter__(self) -> Self:
        sandbox_id = await self.service.start(memory="1g", disk="512m")
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(__file__).with_name("sdk.py")), self.service.url, sandbox_id,
            stdin=pipe, stdout=pipe,
        )  # fmt: skip
        await self.measure("open", self.most)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), 10)
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def measure(self, what: str, count: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([what, count]).encode() + b"\n")
        async for line in self.process.stdout:
            if line.startswith(b"ANSWER"):
                answer = json.loads(line.removeprefix(b"ANSWER"))
                assert isinstance(answer, float), (self.name, what, answer)
                return answer
        raise AssertionError(f"ROCK's client ended at {what}")


async def measure_beside(
    folder: Path, swerex: str | None, rocklet: str | None, at_once: list[int], rounds: int
) -> None:
    """Print a table for each measurement. Interpreters that are None are left out."""
    most, theirs = max(at_once), []
    if rocklet is not None:
        theirs.append(Theirs("rocklet", [rocklet, "-m", "rock.rocklet.server"], folder, most))
    if swerex is not None:
        theirs.append(Theirs("SWE-ReX", [swerex, "-m", "swerex.server", "--auth-token", "benchmark"], folder, most))
    async with AsyncExitStack() as closing:
        service = await closing.enter_async_context(Service(folder / "service"))
        sides: list[Any] = []
        for side in (*theirs, Ours(service, most), OursBySdk(service, most)):
            try:
                sides.append(await closing.enter_async_context(side))
            except FAILURES as error:
                print(f"{side.name} is left out, since it could not begin: {reason(error)}", flush=True)
        theirs = [side for side in theirs if side in sides]
        for side in sides:  # the first of each loads code
            for what in WHAT:
                await timed(side, what, 1)
        print(f"{'milliseconds: median (quartiles)':<48}", *(f"{f'ratio to {side.name}':>24}" for side in theirs))
        for what, title in WHAT.items():
            for count in at_once:
                table = [[await timed(side, what, count) for side in sides] for _ in range(rounds_of(rounds, count))]
                columns = [list(column) for column in zip(*table, strict=True)]
                print(f"\n{title}, {count} at once")
                for side, times in zip(sides, columns, strict=True):
                    line = f"  {side.name:<20} {describe([each for each in times if each is not None], 2):<26}"
                    if side not in theirs:
                        for other in columns[: len(theirs)]:
                            pairs = [(a, b) for a, b in zip(other, times, strict=True) if a is not None and b]
                            line += f" {describe([a / b for a, b in pairs], 1):>24}"
                    failed = times.count(None)
                    print(line.rstrip() + (f"  failed in {failed} of {len(times)}" if failed else ""), flush=True)


FAILURES = (AssertionError, aiohttp.ClientError, TimeoutError)


async def timed(side: Side, what: str, count: int) -> float | None:
    """Measure one of `WHAT`; print why that failed, if it does."""
    try:
        return await side.measure(what, count)
    except FAILURES as error:
        print(f"{side.name} failed at {what}, {count} at once: {reason(error)}", flush=True)
        return None


def reason(error: BaseException) -> str:
    """Return the text of an error."""
    return str(error)[:600] or type(error).__name__


def rounds_of(rounds: int, count: int) -> int:
    """Return the number of rounds for `at_once`. It is smaller for many at once, where a round of the others takes a
    minute, and at least three."""
    return rounds if count <= 16 else min(rounds, max(3, rounds * 16 // count))


def describe(values: list[float], digits: int) -> str:
    """Format the spread of the values, if there is one."""
    return spread(values, digits) if len(values) > 1 else "".join(f"{each:.{digits}f}" for each in values) or "-"
