"""Starts a provider's sandboxes from one thread, and mounts the snapshots of forks.

1. A process begins in the mount namespace of the thread that starts it. If ALE is root, this thread is in the namespace
   of the stage (`bubblewrap.Namespaces`), from which the sandboxes' binds come, so that no helper has to enter it.
2. For a fork, the thread first makes a copy of that namespace for this sandbox. There each writable place is an
   overlay: the lower layer is the snapshot's, which is never written to; the upper one is in memory, as large as the
   place. The copy and all its mounts end with the sandbox's last process, however that ends.
3. bubblewrap dies with the thread that started it (`--die-with-parent`); the thread lives until the provider closes.
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
from ale_sandbox.host.threads import await_completion

T = TypeVar("T")
CLONE_FS, CLONE_NEWNS = 0x200, 0x20000
NOSUID, NODEV = 2, 4


@dataclass(frozen=True)
class Fork:
    """A sandbox started from a snapshot: folder N of the snapshot's layer is its Nth place."""

    layer: Path
    places: int
    disk_mib: int | None


class Launcher:
    """Starts processes. `namespaces` is None if ALE is not root."""

    def __init__(self, namespaces: Namespaces | None) -> None:
        self.namespaces = namespaces
        self._thread = ThreadPoolExecutor(1, "ale-sandbox-launcher", self._enter)

    def _enter(self) -> None:
        if self.namespaces is not None:
            system_call("unshare", CLONE_FS)
            system_call("setns", self.namespaces.mount, CLONE_NEWNS)

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread and wait for it. Raises `OSError` if the thread cannot enter the namespace."""
        try:
            return self._thread.submit(work).result()
        except BrokenExecutor as error:
            raise OSError(
                f"a thread cannot enter the sandboxes' mount namespace ({error.__cause__ or error})"
            ) from error

    async def start(self, popen: Callable[[], subprocess.Popen[bytes]], fork: Fork | None) -> subprocess.Popen[bytes]:
        """Start a process. Raises `OSError`. If this is cancelled, no process is left."""
        starting = asyncio.get_running_loop().run_in_executor(self._thread, self._start, popen, fork)
        try:
            return await await_completion(starting)
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

    def can_fork(self, base: Path) -> bool:
        """Return whether overlays can be mounted on this machine, by trying it in the provider's folder."""
        if self.namespaces is None:
            return False
        with tempfile.TemporaryDirectory(dir=base) as layer:
            Path(layer, "0").mkdir()
            try:
                self.run(lambda: self._start(lambda: subprocess.Popen(["true"]), Fork(Path(layer), 1, 1))).wait()
            except OSError:
                return False
        return True

    def close(self) -> None:
        """End the thread and what it started. Idempotent."""
        self._thread.shutdown()


def mount_places(fork: Fork, namespaces: Namespaces) -> None:
    """Mount the overlays, in this thread's namespace."""
    # Relative names, because a sandbox can read its mounts' options and must not see paths of the host.
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
        # without redirect_dir, folders of the snapshot could not be renamed
        mount("overlay", whole, f"lowerdir={number},upperdir={place}/upper,workdir={place}/work,redirect_dir=on")


def mount(kind: str, target: str, options: str) -> None:
    """Mount a file system that ignores devices and set-uid bits."""
    system_call(
        "mount", b"ale", os.fsencode(target), kind.encode(), ctypes.c_ulong(NOSUID | NODEV), os.fsencode(options)
    )


libc = ctypes.CDLL(None, use_errno=True)


def system_call(name: str, *arguments: object) -> None:
    """Call a function of the C library. Raises `OSError`."""
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def open_process(command: list[str], fds: tuple[int, ...], stderr: int, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a sandbox's first process with these descriptors."""
    return subprocess.Popen(
        command,
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        cwd="/",
        env=env,
        start_new_session=True,  # a Ctrl-C in the terminal must reach only the owner
    )
