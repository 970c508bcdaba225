"""A running local sandbox: calls to its resident, and its end."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ale.errors import SandboxError
from ale.specs.sandbox import AGENT, TESTS, ExecResult, Sandbox, SandboxSpec, SandboxStats
from ale_local.cgroups import Group
from ale_local.channel import Channel

USER_IDS = {AGENT: 1000, TESTS: 1001}
KILL_GRACE_S = 10.0
"""How long a resident may take to kill a command before the sandbox counts as dead."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Parts:
    """What a sandbox is made of on the host, and how to forget it."""

    process: subprocess.Popen[bytes]
    channel: Channel
    group: Group | None
    workdir: str
    env: dict[str, str]
    folder: Path | None
    forget: Callable[[], None]


class LocalSandbox(Sandbox):
    """See `Sandbox`."""

    def __init__(self, sandbox_id: str, spec: SandboxSpec, parts: Parts) -> None:
        self.id, self.spec = sandbox_id, spec
        self._parts = parts
        self._stopped = False

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float = 60.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        user: str = AGENT,
        max_output_bytes: int = 1 << 20,
    ) -> ExecResult:
        """See `Sandbox.exec`."""
        began = time.monotonic()
        pairs = {**self._parts.env, **self.spec.env, **(env or {})}
        environment = b"\0".join(f"{k}={v}".encode() for k, v in pairs.items())
        number, future = self._parts.channel.begin(
            b"X", _uid(user), (cwd or "").encode(), str(max_output_bytes).encode(), environment,
            command.encode("utf-8", "surrogateescape").replace(b"\0", b""), stdin,
        )  # fmt: skip
        timed_out = False
        try:
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await asyncio.shield(future)
            except TimeoutError:
                timed_out = True
                self._parts.channel.tell(b"K", number)
                answer = await self._within_grace(future)
        except asyncio.CancelledError:
            self._parts.channel.tell(b"K", number)
            raise
        if answer[0] == b"!":
            raise SandboxError(f"The sandbox {self.id} cannot run another command: {answer[1].decode()}.")
        code, out, err, truncated = answer
        return ExecResult(
            124 if timed_out else int(code), out, err, time.monotonic() - began, timed_out, bool(truncated)
        )  # fmt: skip

    async def _within_grace(self, future: asyncio.Future[list[bytes]]) -> list[bytes]:
        try:
            async with asyncio.timeout(KILL_GRACE_S):
                return await asyncio.shield(future)
        except TimeoutError:
            raise SandboxError(f"The sandbox {self.id} did not end a command within {KILL_GRACE_S:g} s.") from None

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        """See `Sandbox.upload`. Raises `OSError` with the path where the user may not write."""
        fields = [part for path, data in files.items() for part in (_path(path), data)]
        out, _, _, status = await self._parts.channel.call(b"W", _uid(user), str(mode).encode(), *fields)
        if out:
            number, _, path = out.partition(b" ")
            raise OSError(int(number), os.strerror(int(number)), path.decode("utf-8", "replace"))
        if int(status) != 0:
            raise SandboxError(f"The sandbox {self.id} could not write files: the writer ended with status {int(status)}.")

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        """See `Sandbox.download`; raises the `OSError` that the path deserves."""
        out, err, truncated, _ = await self._parts.channel.call(
            b"R", _uid(AGENT), _path(path), str(max_bytes).encode()
        )
        if err.strip().isdigit():
            raise OSError(int(err), os.strerror(int(err)), path)
        if truncated:
            raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", path)
        return out

    async def kill_agent_processes(self) -> None:
        """See `Sandbox.kill_agent_processes`."""
        await self._parts.channel.call(b"A")

    async def stats(self) -> SandboxStats:
        """See `Sandbox.stats`; all None without control groups."""
        return self._parts.group.stats() if self._parts.group is not None else SandboxStats()

    async def stop(self) -> None:
        """See `Sandbox.stop`."""
        if self._stopped:
            return
        self._stopped = True
        await asyncio.shield(self._stop())

    async def _stop(self) -> None:
        parts = self._parts
        await parts.channel.close("it was stopped")
        if parts.folder is None:
            # Ending process 1 ends the namespace and everything in it; nothing in there deserves a farewell.
            kill(parts.process.pid)
        for _ in range(2000):
            if parts.process.poll() is not None:
                break
            await asyncio.sleep(0.002)
        else:
            kill(parts.process.pid)
            await asyncio.get_running_loop().run_in_executor(None, parts.process.wait)
        if parts.group is not None:
            for _ in range(500):
                if parts.group.remove():
                    break
                await asyncio.sleep(0.004)
        if parts.folder is not None:
            shutil.rmtree(parts.folder, ignore_errors=True)
        parts.forget()


def kill(pid: int) -> None:
    """SIGKILL, where the process is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _uid(user: str) -> bytes:
    if user not in USER_IDS:
        raise ValueError(f"A local sandbox knows the users {', '.join(USER_IDS)}, not '{user}'.")
    return str(USER_IDS[user]).encode()


def _path(path: str) -> bytes:
    if "\0" in path:
        raise OSError(errno.EINVAL, "the path holds a null byte", path)
    return path.encode("utf-8", "surrogateescape")
