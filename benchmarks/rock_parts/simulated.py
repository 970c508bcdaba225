"""Simulated workers in a process of their own, until standard input is closed: `python simulated.py URL COUNT`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ale_rock.http.server import run

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins/sandbox_rock/tests"))
from simulated_workers import SimulatedWorkers


async def main(url: str, count: int) -> None:
    """Keep the protocol and start nothing."""
    async with SimulatedWorkers(url, count, keep_orders=False):
        print(f"{count} workers", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    run(main(sys.argv[1], int(sys.argv[2])))
