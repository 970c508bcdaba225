"""A service of `ale rock serve` in processes of its own, its requests, and what its processes use."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import aiohttp

ROCK, ALE = "/apis/envs/sandbox/v1", "/apis/ale/v1"
COMMAND = (sys.executable, "-c", "from ale.cli.main import main; main()")
START_S = 120.0
SMALL = {"image": "python:3.11", "cpus": 0.01, "limit_cpus": 2, "memory": "64m", "auto_clear_time_minutes": 0}
"""A sandbox of which a thousand are promised on a small machine."""


class Service:
    """`async with` starts it in `folder`, and stops it with its sandboxes. `worker` is a provider's name or `none`;
    `own_tmp`: what it keeps of sandboxes lies in that folder, too, and not with that of other services."""

    def __init__(
        self,
        folder: Path,
        worker: str = "local",
        settings: dict[str, Any] | None = None,
        options: tuple[str, ...] = (),
        own_tmp: bool = False,
    ) -> None:
        self.folder, self.worker, self.options, self.own_tmp = folder, worker, options, own_tmp
        self.settings = settings or {}

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        settings_file = self.folder / "settings.yaml"
        settings_file.write_text(json.dumps(self.settings))
        self.log = self.folder / "serve.log"
        arguments = ["--port", "0", "--database", f"sqlite:///{self.folder}/rock.sqlite", "--worker", self.worker]
        environment = {**os.environ, "TMPDIR": str(self.folder)} if self.own_tmp else None
        with self.log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                *COMMAND, "rock", "serve", *arguments, "--settings", str(settings_file), *self.options,
                cwd=self.folder, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.url = await self._line("ROCK service: ")
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=600)
        self.http = aiohttp.ClientSession(self.url, connector=connector, timeout=timeout)
        if self.worker != "none":
            await self.wait_for_workers(1)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.http.close()
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), START_S)
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def _line(self, start: str) -> str:
        until = time.monotonic() + START_S
        while time.monotonic() < until and self.process.returncode is None:
            for line in self.log.read_text().splitlines():
                if line.startswith(start):
                    return line.removeprefix(start).strip()
            await asyncio.sleep(0.05)
        raise AssertionError(f"the service did not start: {self.log.read_text()[-2000:]}")

    async def wait_for_workers(self, count: int) -> None:
        """Return when as many workers have registered."""
        until = time.monotonic() + START_S
        while len((await self.status())["workers"]) < count:
            assert time.monotonic() < until, f"no {count} workers registered: {self.log.read_text()[-2000:]}"
            await asyncio.sleep(0.1)

    async def status(self) -> Any:
        """Return what `ale rock status` shows."""
        async with self.http.get(f"{ALE}/status") as response:
            return await response.json()

    async def rock(self, path: str, body: dict[str, Any]) -> Any:
        """Send a request of ROCK's API and return its result. Raises `AssertionError` if it failed."""
        async with self.http.post(ROCK + path, json=body) as response:
            envelope = await response.json()
        assert envelope["status"] == "Success", (path, envelope)
        return envelope["result"]

    async def start(self, **asked: Any) -> str:
        """Start a small sandbox and return its id."""
        started: str = (await self.rock("/start_async", {**SMALL, **asked}))["sandbox_id"]
        return started

    @property
    def pids(self) -> list[int]:
        """The process of the admin, and those of the workers that it started."""
        return [self.process.pid, *children(self.process.pid)]


def children(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    return [pid for pid, above in parents().items() if above == parent]


def descendants(root: int) -> list[int]:
    """Return the processes that a process has started, what these have started, and so on."""
    above, found = parents(), [root]
    below: dict[int, list[int]] = {}
    for pid, parent in above.items():
        below.setdefault(parent, []).append(pid)
    for pid in found:
        found += below.get(pid, [])
    return found[1:]


def parents() -> dict[int, int]:
    """Return the parent of each process."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit():
                found[int(entry.name)] = int(stat_of(int(entry.name))[1])
    return found


def proportional_mib(pids: list[int]) -> float:
    """Return the memory of processes, what several share divided by their number (the kernel's Pss)."""
    found = 0
    for pid in pids:
        with suppress(OSError):  # it has ended
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            found += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found / 1024


def stat_of(pid: int) -> list[str]:
    """Return what `/proc/PID/stat` says after the program's name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    return sum(map(int, stat_of(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def cpu_of_ended_s(pid: int) -> float:
    """Return the seconds of CPU that its children had used when they ended, with theirs."""
    return sum(map(int, stat_of(pid)[13:15])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Return the memory that a process has resident."""
    return int(stat_of(pid)[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files(pid: int) -> int:
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def available_mib() -> float:
    """Return the memory that this machine could still give."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) / 1024


def percentile(values: list[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: list[float], digits: int) -> str:
    """Format the median, and the quartiles in brackets."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"
