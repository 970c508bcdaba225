"""What a program elsewhere sees of the service, by ROCK's own client: many sandboxes that start at the same time, a
large upload, and a WebSocket into a sandbox."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rock_parts.service import Service, resident_mib

CLIENT = Path(__file__).with_name("outside_client.py")


async def measure_outside(folder: Path, count: int, mib: int) -> None:
    """Start `count` sandboxes at once, upload `mib` MiB, use a WebSocket, and print what each took."""
    async with Service(folder / "outside", settings={"disk_limits": True}) as service:
        for what, number in (("sandboxes", count), ("upload", mib), ("websocket", 1000)):
            before = [resident_mib(pid) for pid in service.pids]
            client = await asyncio.create_subprocess_exec(
                sys.executable, "-u", str(CLIENT), service.url, what, str(number), str(service.folder)
            )
            assert await client.wait() == 0, f"{what}: the client failed"
            most = [peak_mib(pid) for pid in service.pids]
            for name, first, last in zip(("admin", "worker"), before, most, strict=True):
                print(f"  memory of the {name:<15} {first:.0f} MiB before, at most {last:.0f}", flush=True)
        left = (await service.status())["sandboxes"]
        assert not left.get("running"), left


def peak_mib(pid: int) -> float:
    """Return the most memory that a process has had resident."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1024
