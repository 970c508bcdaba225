"""A sandbox on this machine: its resident is a child process of this one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ale.specs.sandbox import SandboxSpec
from ale.specs.sandbox_protocols import SandboxStats
from ale_local import cgroups, sandbox_records
from ale_sandbox.host.channel import Channel
from ale_sandbox.sandboxes.sandbox import ResidentSandbox

MOST_FILES = 200_000
STARTUP_BYTES = 4000


class LocalSandbox(ResidentSandbox):
    """A sandbox without isolation that this process owns. `LocalSandboxProvider.start_sandbox` makes it."""

    def __init__(
        self,
        *,
        spec: SandboxSpec,
        record: sandbox_records.Record,
        folder: Path,
        process: subprocess.Popen[bytes],
        channel: Channel,
        on_stopped: Callable[[LocalSandbox], None],
    ) -> None:
        super().__init__(record.id, spec, channel, on_stopped)
        self.record = record
        self.folder = folder
        self.process = process
        self.stderr: int | None = None
        self.startup_text = ""

    @property
    def endpoint_url(self) -> str | None:
        """The URL of the model endpoint; without isolation the host's."""
        return super().endpoint_url if self.record.folder is None else self.spec.endpoint

    async def stats(self) -> SandboxStats:
        if self.channel.closed.is_set():
            raise self.channel.error()
        try:
            held = cgroups.read_stats(self.record.cgroups)
        except (OSError, ValueError):
            held = SandboxStats()
        if self.record.folder is not None:  # without isolation the network is the host's
            return replace(held, disk_bytes=await asyncio.to_thread(size_of, self.record.folder))
        own = await self.usage()
        return replace(own, memory_bytes=held.memory_bytes, cpu_s=held.cpu_s, pids=held.pids)

    async def startup_output(self) -> str:
        if self.stderr is not None:
            at = max(0, os.fstat(self.stderr).st_size - STARTUP_BYTES)
            self.startup_text = os.pread(self.stderr, STARTUP_BYTES, at).decode("utf-8", "replace")
        return self.startup_text

    def keep_stderr(self, fd: int) -> None:
        """Keep the stderr of the first process; `fd` still belongs to the caller."""
        self.stderr = os.dup(fd)

    async def clean_up(self) -> None:
        """Wait for the end of the process, force it if needed, then remove what is left."""
        if not await wait_until_ended(self.process, 2.0):
            self.process.send_signal(signal.SIGKILL)
            await wait_until_ended(self.process, 5.0)
        await asyncio.to_thread(sandbox_records.erase, self.folder, self.record)
        if self.stderr is not None:
            await self.startup_output()
            os.close(self.stderr)
            self.stderr = None


def size_of(folder: str) -> int | None:
    """Return the size of the files below a folder; None if there are too many to count. Blocks."""
    total = seen = 0
    for parent, folders, files in os.walk(folder):
        seen += len(folders) + len(files)
        if seen > MOST_FILES:
            return None
        for name in files:
            with suppress(OSError):  # it was removed meanwhile
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


async def wait_until_ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for a process without polling it; return whether it ended in time."""
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
