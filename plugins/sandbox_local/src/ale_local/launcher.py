"""The thread that starts the sandboxes of a provider, and the mounts of those that start from a snapshot.

1. A process begins in the mount namespace of the thread that starts it. As root this thread lives in the one of the stage
   (`bubblewrap.Namespaces`), where the sandbox's binds come from, so that no helper has to enter it.
2. For a snapshot it first makes a copy of that namespace for the sandbox alone. There each writable place is an overlay: below,
   the snapshot's layer, which nobody writes to; above, a file system in memory of the place's own size. The copy, and so all
   that is mounted in it, ends with the sandbox's last process, however that ends.
3. bubblewrap dies with the thread that started it (`--die-with-parent`); this one lives until the provider is closed.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ale_local.bubblewrap import Namespaces
from ale_resident.threads import to_its_end

T = TypeVar("T")
CLONE_FS, CLONE_NEWNS = 0x200, 0x20000
NOSUID, NODEV = 2, 4


@dataclass(frozen=True)
class Fork:
    """What a sandbox that starts from a snapshot stands on: folder N of the layer is its Nth place."""

    layer: Path
    places: int
    disk_mib: int | None


class Launcher:
    """Starts processes. `namespaces` is None where ALE is not root."""

    def __init__(self, namespaces: Namespaces | None) -> None:
        self.namespaces = namespaces
        self._thread = ThreadPoolExecutor(1, "ale-sandbox-launcher", self._enter)

    def _enter(self) -> None:
        if self.namespaces is not None:
            system_call("unshare", CLONE_FS)
            system_call("setns", self.namespaces.mount, CLONE_NEWNS)

    def run(self, work: Callable[[], T]) -> T:
        """Do something there and wait for it. Raises `OSError` where the thread cannot live there."""
        try:
            return self._thread.submit(work).result()
        except BrokenExecutor as error:
            raise OSError(
                f"a thread cannot enter the sandboxes' mount namespace ({error.__cause__ or error})"
            ) from error

    async def start(self, popen: Callable[[], subprocess.Popen[bytes]], fork: Fork | None) -> subprocess.Popen[bytes]:
        """Start a process. Raises `OSError`. When this is cancelled, there is none."""
        starting = asyncio.get_running_loop().run_in_executor(self._thread, self._start, popen, fork)
        try:
            return await to_its_end(starting)
        except asyncio.CancelledError:
            if starting.exception() is None:
                starting.result().kill()
                starting.result().wait()
            raise

    def _start(self, popen: Callable[[], subprocess.Popen[bytes]], fork: Fork | None) -> subprocess.Popen[bytes]:
        if fork is None:
            return popen()
        assert self.namespaces is not None
        system_call("unshare", CLONE_NEWNS)
        try:
            mount_places(fork, self.namespaces)
            return popen()
        finally:
            system_call("setns", self.namespaces.mount, CLONE_NEWNS)

    def can_fork(self) -> bool:
        """Whether overlays can be mounted here. Tries it."""
        if self.namespaces is None:
            return False
        with tempfile.TemporaryDirectory() as layer:
            Path(layer, "0").mkdir()
            try:
                self.run(lambda: self._start(lambda: subprocess.Popen(["true"]), Fork(Path(layer), 1, 1))).wait()
            except OSError:
                return False
        return True

    def close(self) -> None:
        """End the thread, and what it started. Idempotent."""
        self._thread.shutdown()


def mount_places(fork: Fork, namespaces: Namespaces) -> None:
    """Mount the overlays, in this thread's namespace."""
    # Relative names: a sandbox can read the options of its mounts, and needs no paths of the host's.
    os.chdir(fork.layer)
    size = "" if fork.disk_mib is None else f",size={fork.disk_mib}m"
    for number in range(fork.places):
        whole = namespaces.place(number)
        place = os.path.dirname(whole)
        os.makedirs(place, exist_ok=True)
        mount("tmpfs", place, f"mode=755{size}")
        for name in ("whole", "work", "upper"):
            os.mkdir(f"{place}/{name}")
        lower = os.stat(str(number))
        os.chown(f"{place}/upper", lower.st_uid, lower.st_gid)
        os.chmod(f"{place}/upper", stat.S_IMODE(lower.st_mode))
        # redirect_dir: or folders of the snapshot could not be renamed
        mount("overlay", whole, f"lowerdir={number},upperdir={place}/upper,workdir={place}/work,redirect_dir=on")


def mount(kind: str, target: str, options: str) -> None:
    """Mount a file system in which no device and no set-uid bit counts."""
    system_call(
        "mount", b"ale", os.fsencode(target), kind.encode(), ctypes.c_ulong(NOSUID | NODEV), os.fsencode(options)
    )


libc = ctypes.CDLL(None, use_errno=True)


def system_call(name: str, *arguments: object) -> None:
    """Call the C library. Raises `OSError`."""
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
