"""The admin alone: simulated workers keep the protocol and start nothing, so all the time is the admin's.

1. `live` sandboxes are started as fast as the admin takes them.
2. At each of `rates`, so many are created a second and as many, the oldest, are stopped. A request's time counts from
   the moment at which it was due, so that an admin that falls behind does not look fast.
3. Churn: creates and stops as fast as possible; memory after each tenth.

Admin, workers and this program are three processes that share the machine's cores. Workers report every five seconds,
so that a busy machine does not make the admin take them for lost.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from pathlib import Path

from rock_parts.service import Service, cpu_s, percentile, resident_mib

FILLING = 128
SETTINGS = {"cpu_overcommit": 1e4, "worker_timeout_s": 15}


async def measure_admin(folder: Path, workers: int, live: int, rates: list[int], seconds: float, churn: int) -> None:
    """Print what the admin does."""
    settings = {**SETTINGS, "queue_limit": max(10_000, live)}
    print(f"{os.cpu_count()} cores for the admin, {workers} simulated workers and the clients", flush=True)
    async with Service(folder / "admin", worker="none", settings=settings) as service:
        program = str(Path(__file__).with_name("simulated.py"))
        simulated = await asyncio.create_subprocess_exec(
            sys.executable, program, service.url, str(workers), stdin=asyncio.subprocess.PIPE
        )
        try:
            await service.wait_for_workers(workers)
            load = Load(service, simulated.pid)
            await fill(load, live)
            for rate in rates:
                await paced(load, rate, seconds)
            await churned(load, churn)
            status = await service.status()
            assert status["sandboxes"]["running"] == len(load.ids), (status["sandboxes"], len(load.ids))
            assert not status["events"].get("lost"), status["events"]
            print(f"{'at the end':<30}{len(load.ids)} live, none lost", flush=True)
        finally:
            if simulated.stdin is not None:
                simulated.stdin.close()
            await simulated.wait()


class Load:
    """The sandboxes that were started, the oldest first, and what the admin used meanwhile."""

    def __init__(self, service: Service, workers: int) -> None:
        self.service, self.pid, self.workers = service, service.process.pid, workers
        self.ids: deque[str] = deque()
        self.mark()

    def mark(self) -> None:
        """Begin to measure."""
        self.began, self.cpu = time.perf_counter(), self._cpu()

    def _cpu(self) -> list[float]:
        return [cpu_s(pid) for pid in (self.pid, self.workers, os.getpid())]

    def used(self, created: int) -> str:
        """Say what was used since the last mark, in which so many were created."""
        took = time.perf_counter() - self.began
        admin, workers, clients = (last - first for first, last in zip(self.cpu, self._cpu(), strict=True))
        others = f"workers {workers / took * 100:.0f} %, clients {clients / took * 100:.0f} %"
        return (
            f"admin {admin / took * 100:.0f} % of a core, {admin / created * 1e3:.2f} ms for each, "
            f"{resident_mib(self.pid):.0f} MiB ({others})"
        )

    async def create(self) -> None:
        """Create one."""
        self.ids.append(await self.service.start())

    async def replace(self) -> None:
        """Stop the oldest and create one."""
        await self.service.rock("/stop", {"sandbox_id": self.ids.popleft()})
        await self.create()


async def fill(load: Load, live: int) -> None:
    """Start the sandboxes that live during what follows."""
    empty = resident_mib(load.pid)
    load.mark()
    left = iter(range(live))

    async def client() -> None:
        for _ in left:
            await load.create()

    await asyncio.gather(*(client() for _ in range(min(FILLING, live))))
    each = (resident_mib(load.pid) - empty) / live * 1024
    rate = live / (time.perf_counter() - load.began)
    print(f"{f'{live} live':<30}{rate:.0f} creates a second, {load.used(live)}, {each:.1f} KiB each", flush=True)


async def paced(load: Load, rate: int, seconds: float) -> None:
    """Create and stop at a rate."""
    times: list[float] = []

    async def one(due: float) -> None:
        await load.create()
        times.append((time.perf_counter() - due) * 1e3)
        await load.service.rock("/stop", {"sandbox_id": load.ids.popleft()})

    load.mark()
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            due = load.began + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(due))
    took, used = time.perf_counter() - load.began, load.used(len(times))
    print(f"{f'{rate} creates a second':<30}{len(times)} in {took:.1f} s: P50 {percentile(times, 0.5):.1f} ms, "
          f"P99 {percentile(times, 0.99):.1f} ms, most {max(times):.1f} ms; {used}", flush=True)  # fmt: skip


async def churned(load: Load, churn: int) -> None:
    """Replace sandboxes as fast as possible."""
    for tenth in range(10 if churn else 0):
        load.mark()
        left = iter(range(churn // 10))

        async def client(left: object = left) -> None:
            for _ in left:  # type: ignore[attr-defined]
                await load.replace()

        await asyncio.gather(*(client() for _ in range(min(FILLING, len(load.ids)))))
        rate = (churn // 10) / (time.perf_counter() - load.began)
        done = (tenth + 1) * (churn // 10)
        print(f"{f'churn, {done} replaced':<30}{rate:.0f} a second, {load.used(churn // 10)}", flush=True)
