"""A sandbox of this machine: its resident is a process that this one started."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from ale.specs.sandbox import SandboxSpec, SandboxStats
from ale_local import cgroups, state
from ale_resident.channel import Channel
from ale_resident.sandbox import ResidentSandbox


class LocalSandbox(ResidentSandbox):
    """A sandbox of this process. Made by `LocalSandboxProvider.start_sandbox`."""

    def __init__(
        self,
        spec: SandboxSpec,
        record: state.Record,
        folder: Path,
        process: subprocess.Popen[bytes],
        channel: Channel,
        on_stopped: Callable[[LocalSandbox], None],
    ) -> None:
        super().__init__(record.id, spec, channel, on_stopped)
        self.record = record
        self.folder = folder
        self.process = process

    async def stats(self) -> SandboxStats:
        if self.channel.closed.is_set():
            raise self.channel.error()
        try:
            return cgroups.read_stats(self.record.cgroups)
        except (OSError, ValueError):
            return SandboxStats()

    async def take_away(self) -> None:
        """Await the end of the process, help where it does not come, then remove what is left."""
        if not await ended(self.process, 2.0):
            self.process.send_signal(signal.SIGKILL)
            await ended(self.process, 5.0)
        await asyncio.to_thread(state.erase, self.folder, self.record)


async def ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for a process without polling it; whether it ended in time."""
    if process.poll() is not None:
        return True
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    fd = os.pidfd_open(process.pid)
    loop.add_reader(fd, done.set)
    try:
        async with asyncio.timeout(timeout_s):
            await done.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    return process.wait() is not None
