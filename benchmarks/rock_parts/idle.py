"""Many live sandboxes that do nothing, on this machine, and what each of them takes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from rock_parts.service import (
    Service,
    available_mib,
    cpu_s,
    descendants,
    open_files,
    percentile,
    proportional_mib,
    resident_mib,
)

STARTING, ASKED, SETTLE_S = 32, 25, 5.0


async def measure_idle(folder: Path, count: int) -> None:
    """Start `count` sandboxes, print the memory that each takes, ask some of them, and stop all."""
    async with Service(folder / "idle") as service:
        await service.rock("/stop", {"sandbox_id": await service.start()})
        await asyncio.sleep(SETTLE_S)
        before, own_before = available_mib(), [resident_mib(pid) for pid in service.pids]
        times: list[float] = []
        pids = service.pids
        cpu = [sum(map(cpu_s, pids))]

        async def start() -> str:
            began = time.perf_counter()
            started = await service.start()
            times.append((time.perf_counter() - began) * 1e3)
            cpu.append(sum(map(cpu_s, pids)))
            return started

        ids, took_s = await at_most(STARTING, [start() for _ in range(count)])
        await asyncio.sleep(SETTLE_S)
        used, own = before - available_mib(), [resident_mib(pid) for pid in service.pids]
        status = await service.status()
        assert status["sandboxes"]["running"] == count, status["sandboxes"]
        print(f"live idle sandboxes           {count}, started in {took_s:.1f} s ({count / took_s:.0f} a second)")
        part = max(1, count // 4)
        for name, some, spent in (("first", times[:part], cpu[: part + 1]), ("last", times[-part:], cpu[-part - 1 :])):
            line = f"P50 {percentile(some, 0.5):.0f} ms, P99 {percentile(some, 0.99):.0f} ms"
            line += f"; CPU of admin and worker {(spent[-1] - spent[0]) / part * 1e3:.1f} ms each"
            print(f"  a start, of the {name:<13} {len(some)} of them: {line}")
        print(f"memory of the machine         {used:.0f} MiB more in use: {used / count:.2f} MiB for each sandbox")
        for name, first, last in zip(("admin", "worker"), own_before, own, strict=True):
            print(f"  of it the {name:<19} {first:.0f} -> {last:.0f} MiB: {(last - first) / count * 1024:.1f} KiB each")
        files = open_files(service.pids[1])
        print(f"  open files of the worker    {files}: {files / count:.1f} each")
        inside = descendants(service.pids[1])
        print(f"  of it their {len(inside):<17} processes (PSS): {proportional_mib(inside) / count:.2f} MiB each")
        asked = ids[:: max(1, count // ASKED)]
        began = time.perf_counter()
        for each in asked:
            done = await service.rock("/execute", {"sandbox_id": each, "command": ["true"]})
            assert done["exit_code"] == 0, done
        print(
            f"a command in {len(asked)} of them         {(time.perf_counter() - began) / len(asked) * 1e3:.1f} ms each"
        )
        _, stopped_s = await at_most(STARTING, [service.rock("/stop", {"sandbox_id": each}) for each in ids])
        await asyncio.sleep(SETTLE_S)
        left = before - available_mib()
        print(f"all stopped                   in {stopped_s:.1f} s; {left:.0f} MiB more in use than before", flush=True)


async def at_most(count: int, calls: list[Any]) -> tuple[list[Any], float]:
    """Await calls, no more than `count` of them at the same time; return the results and the seconds."""
    slots = asyncio.Semaphore(count)

    async def one(call: Any) -> Any:
        async with slots:
            return await call

    began = time.perf_counter()
    return await asyncio.gather(*map(one, calls)), time.perf_counter() - began
