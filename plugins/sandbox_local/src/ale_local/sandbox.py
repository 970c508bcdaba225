"""A sandbox of this machine: its resident is a process that this one started."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ale.errors import UncleanError
from ale.specs.sandbox import SandboxSpec, SandboxStats
from ale_local import cgroups, state
from ale_local.layers import Held, check_name
from ale_local.snapshots import Camera
from ale_resident.channel import Channel
from ale_resident.sandbox import ResidentSandbox

MOST_FILES = 200_000
SAID_BYTES = 4000


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
        self.camera: Camera | None = None
        """Makes its snapshots, where it can have some."""
        self.held: Held | None = None
        """The snapshot that it stands on."""
        self._one_snapshot = asyncio.Lock()
        self.stderr: int | None = None
        self.said = ""

    @property
    def endpoint_url(self) -> str | None:
        """Without isolation it is where it is on the host."""
        return super().endpoint_url if self.record.folder is None else self.spec.endpoint

    async def stats(self) -> SandboxStats:
        if self.channel.closed.is_set():
            raise self.channel.error()
        try:
            held = cgroups.read_stats(self.record.cgroups)
        except (OSError, ValueError):
            held = SandboxStats()
        if self.record.folder is not None:  # without isolation the network is everybody's
            return replace(held, disk_bytes=await asyncio.to_thread(size_of, self.record.folder))
        own = await self.usage()
        return replace(own, memory_bytes=held.memory_bytes, cpu_s=held.cpu_s, pids=held.pids)

    async def first_words(self) -> str:
        if self.stderr is not None:
            at = max(0, os.fstat(self.stderr).st_size - SAID_BYTES)
            self.said = os.pread(self.stderr, SAID_BYTES, at).decode("utf-8", "replace")
        return self.said

    def keep_stderr(self, fd: int) -> None:
        """Where its first process writes to; `fd` stays the caller's."""
        self.stderr = os.dup(fd)

    async def snapshot(self, name: str | None = None, *, processes: bool = False) -> str:
        """Keep the work folder, the home folder and /tmp; not /dev/shm. See `snapshots.py`."""
        if self.channel.closed.is_set():
            raise self.channel.error()
        if self.camera is None:
            raise self._cannot("make snapshots", "snapshot")
        if processes:
            raise self._cannot("keep its processes in a snapshot", "checkpoint")
        check_name(name)
        async with self._one_snapshot:
            return await self.camera.take(self.channel, name)

    async def reset(self, spec: SandboxSpec) -> None:
        if self.spec.from_snapshot is not None:
            raise UncleanError(
                f"The sandbox {self.id} was started from a snapshot, and cannot be made as new; stop it and start another.",
                "other",
            )
        await super().reset(spec)
        self.record = replace(self.record, labels=self.labels)
        state.write(self.folder, self.record)

    async def take_away(self) -> None:
        """Await the end of the process, help where it does not come, then remove what is left."""
        if not await ended(self.process, 2.0):
            self.process.send_signal(signal.SIGKILL)
            await ended(self.process, 5.0)
        await asyncio.to_thread(state.erase, self.folder, self.record)
        if self.held is not None and self.camera is not None:
            self.held.close()
            await asyncio.to_thread(self.camera.layers.collect)  # it may have been removed, or replaced, meanwhile
        if self.stderr is not None:
            await self.first_words()
            os.close(self.stderr)
            self.stderr = None


def size_of(folder: str) -> int | None:
    """Bytes that the files below a folder take; None where there are too many to count. Blocks."""
    total = seen = 0
    for parent, folders, files in os.walk(folder):
        seen += len(folders) + len(files)
        if seen > MOST_FILES:
            return None
        for name in files:
            with suppress(OSError):  # it has gone meanwhile
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


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
