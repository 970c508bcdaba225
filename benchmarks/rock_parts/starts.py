"""From the request to start a sandbox to the answer of its first command, through the whole service."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from rock_parts.service import Service, cpu_of_ended_s, cpu_s, percentile

AGAIN_S, EACH_S = 0.3, 0.04


async def first_command(service: Service, ids: list[str]) -> float:
    """Start a sandbox and run a command in it; return the milliseconds until both are done."""
    began = time.perf_counter()
    sandbox_id = await service.start()
    ids.append(sandbox_id)
    done = await service.rock("/execute", {"sandbox_id": sandbox_id, "command": ["sh", "-c", "echo $((6 * 7))"]})
    took = (time.perf_counter() - began) * 1e3
    assert (done["exit_code"], done["stdout"].strip()) == (0, "42"), done
    return took


async def measure_starts(folder: Path, at_once: list[int], starts: int, warm: str | None) -> None:
    """Print P50 and P99, and the CPU of admin, worker and sandbox for one start, command and stop. `starts` is how many
    there are for each number at once, and at least three times that number. `warm` is options of `ale rock serve` with
    which workers keep sandboxes ready."""
    heads = ["starts", "P50", "P99", "most", "starts/s", "CPU: admin", "worker", "sandbox"]
    print(f"{'start to first command, milliseconds':<38}", *(f"{head:>10}" for head in heads))
    for name, options in (("cold", ()), ("warm", tuple((warm or "").split()))):
        if name == "warm" and warm is None:
            print("warm: left out, because no --warm-options were given: they say how a worker keeps sandboxes ready")
            continue
        async with Service(folder / name, options=options) as service:
            await first_command(service, ids := [])
            await service.rock("/stop", {"sandbox_id": ids[0]})
            admin, worker = service.pids
            for count in at_once:
                times: list[float] = []
                spent_s = 0.0
                used = [cpu_s(admin), cpu_s(worker), cpu_of_ended_s(worker)]
                for _ in range(max(3, -(-starts // count))):
                    if name == "warm":
                        await asyncio.sleep(AGAIN_S + count * EACH_S)  # until those that were taken are there again
                    ids, began = [], time.perf_counter()
                    times += await asyncio.gather(*(first_command(service, ids) for _ in range(count)))
                    spent_s += time.perf_counter() - began
                    await asyncio.gather(*(service.rock("/stop", {"sandbox_id": each}) for each in ids))
                now = [cpu_s(admin), cpu_s(worker), cpu_of_ended_s(worker)]
                cpu_ms = [(last - first) / len(times) * 1e3 for first, last in zip(used, now, strict=True)]
                row = [percentile(times, 0.5), percentile(times, 0.99), max(times), len(times) / spent_s, *cpu_ms]
                print(f"  {f'{name}, {count} at once':<36} {len(times):>10}", *(f"{each:>10.1f}" for each in row),
                      flush=True)  # fmt: skip
