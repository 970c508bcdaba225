"""A sandbox with a resident in it: calls become requests, `stop` takes everything away. What that is, providers say."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from ale.errors import SandboxError
from ale.specs.sandbox import AGENT, TESTS, ExecResult, Sandbox, SandboxSpec
from ale_resident.channel import Channel
from ale_resident.wire import CANCEL, EXEC, INIT, KILL, READ, WRITE

PIECE_BYTES = 1 << 20
"""Uploads go out in pieces of about this size."""
GRACE_S = 15.0
"""Beyond a command's own time-out: a resident that has not answered by then is taken for dead."""


class ResidentSandbox(Sandbox):
    """A sandbox of this process. `on_stopped` is called once, when everything is gone."""

    def __init__(self, sandbox_id: str, spec: SandboxSpec, channel: Channel, on_stopped: Callable[[Any], None]) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.channel = channel
        self.on_stopped = on_stopped
        self.stopping: asyncio.Task[None] | None = None
        self.timers: dict[str, asyncio.TimerHandle] = {}

    @abstractmethod
    async def take_away(self) -> None:
        """The connection to the resident is closed: await the end, help where it does not come, remove what is left."""

    async def set_up(self, constants: list[bytes], files: Mapping[str, bytes]) -> None:
        """Tell the resident what it is and put the first files in place; returns when the sandbox is ready."""
        first, ready = self.channel.begin(INIT, constants)
        try:
            async with asyncio.timeout(GRACE_S):
                await ready
        except TimeoutError:
            raise SandboxError(f"The sandbox {self.id} did not start within {GRACE_S:.0f} s.") from None
        finally:
            self.channel.calls.pop(first, None)
        if files:
            await self.upload(files)
        if self.spec.lifetime_s is not None:
            loop = asyncio.get_running_loop()
            self.timers["life"] = loop.call_later(self.spec.lifetime_s, self.begin_stop, "its lifetime is over")
        if self.spec.idle_s is not None:
            self.watch_idleness(self.spec.idle_s)

    def watch_idleness(self, idle_s: float) -> None:
        """Stop once nothing is under way and nothing was asked for `idle_s`; look again when that could be so."""
        loop = asyncio.get_running_loop()
        left = idle_s if self.channel.calls else self.channel.quiet_since + idle_s - loop.time()
        if left <= 0:
            self.begin_stop(f"nothing was asked of it for {idle_s:g} s")
        else:
            self.timers["idle"] = loop.call_later(left, self.watch_idleness, idle_s)

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
        constants = [str(timeout_s), str(max_output_bytes), check_user(user), cwd or "", command]
        pairs = [as_bytes(f"{name}={value}") for name, value in (env or {}).items()]
        fields = [*(as_bytes(text) for text in constants), stdin, *pairs]
        if "\0" in command or any(b"\0" in pair for pair in pairs):
            reason = b"The command or its environment holds a NUL byte, which no shell can take.\n"
            return ExecResult(2, b"", reason, 0.0)
        number, future = self.channel.begin(EXEC, fields)
        try:
            async with asyncio.timeout(timeout_s + GRACE_S):
                answer = await future
        except TimeoutError:
            self.channel.close(f"its resident process did not end a command {GRACE_S:.0f} s after its time-out")
            raise self.channel.error() from None
        except asyncio.CancelledError:
            self.channel.send(number, CANCEL)
            raise
        finally:
            self.channel.calls.pop(number, None)
        try:
            code, timed_out, truncated, seconds, stdout, stderr = answer
            return ExecResult(int(code), stdout, stderr, float(seconds), timed_out == b"1", truncated == b"1")
        except ValueError as error:
            raise SandboxError(f"The sandbox {self.id} gave an answer that makes no sense ({error}).") from error

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        head = [check_user(user).encode(), f"{mode:o}".encode()]
        batch: list[bytes] = []
        size = 0
        for path, content in files.items():
            if not path or "\0" in path:
                raise SandboxError(f"The sandbox {self.id} cannot write a file named {path!r}.")
            if size + len(content) > PIECE_BYTES and batch:
                await self.write([*head, b"w", *batch])
                batch, size = [], 0
            batch += (as_bytes(path), content[:PIECE_BYTES])
            size += len(content)
            if len(content) > PIECE_BYTES:
                await self.write([*head, b"w", *batch])
                batch, size = [], 0
                for at in range(PIECE_BYTES, len(content), PIECE_BYTES):
                    await self.write([*head, b"a", as_bytes(path), content[at : at + PIECE_BYTES]])
        if batch:
            await self.write([*head, b"w", *batch])

    async def write(self, fields: list[bytes]) -> None:
        """One request of an upload."""
        try:
            await self.channel.ask(WRITE, fields, 60.0)
        except OSError as error:
            names = ", ".join(os.fsdecode(path) for path in fields[3::2][:3])
            raise SandboxError(f"The sandbox {self.id} could not write {names}: {error.strerror}.") from error

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        try:
            pieces = await self.channel.ask(READ, [as_bytes(path), str(max_bytes).encode()], 120.0)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise type(error)(error.errno, error.strerror, path) from None
        except NotADirectoryError as error:
            raise FileNotFoundError(error.errno, error.strerror, path) from None
        except OSError as error:
            raise SandboxError(f"The sandbox {self.id} could not read {path}: {error.strerror}.") from error
        return b"".join(pieces)

    async def kill_agent_processes(self) -> None:
        try:
            await self.channel.ask(KILL, [], 30.0)
        except OSError as error:
            raise SandboxError(f"The sandbox {self.id} could not be cleared: {error.strerror}.") from error

    async def stop(self) -> None:
        await asyncio.shield(self.begin_stop("it was stopped"))

    def begin_stop(self, reason: str) -> asyncio.Task[None]:
        """Start stopping, or join the stop under way. Runs to its end even where its caller is cancelled."""
        if self.stopping is None:
            for timer in self.timers.values():
                timer.cancel()
            self.channel.close(reason)
            self.stopping = asyncio.get_running_loop().create_task(self._end())
        return self.stopping

    async def _end(self) -> None:
        try:
            await self.take_away()
        finally:
            self.on_stopped(self)


def as_bytes(text: str) -> bytes:
    """A command or a path as the kernel takes it, also where a policy wrote half a character."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def check_user(user: str) -> str:
    """The two roles of the contract are the users there are."""
    if user not in (AGENT, TESTS):
        raise SandboxError(f"A sandbox has the users '{AGENT}' and '{TESTS}', not {user!r}.")
    return user
