"""A persistent shell, the host's side. In the sandbox, `resident/shells/` serves it.

The shell is one call that lasts as long as it does; each command is a call of its own that names the shell. Hanging up
ends the call and so the shell."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ale.errors import SandboxError
from ale.specs.sandbox import ExecResult
from ale.specs.sandbox_protocols import Shell
from ale_sandbox.host.channel import Channel
from ale_sandbox.host.commands import GRACE_S, NO_COMMAND, as_bytes, check_user, run, variable_fault
from ale_sandbox.resident.frames import CANCEL, DATA, FAILED, RUN, SHELL, frame, unpack


class ResidentShell(Shell):
    """`ResidentShell.open` makes it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.number = channel.number()
        self.name = b""
        """The resident's name for the shell."""
        self.fault: str | None = None
        """Why the shell has ended; None while it runs."""
        self._named, self._over = asyncio.Event(), asyncio.Event()
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, channel: Channel, cwd: str | None, env: Mapping[str, str] | None, user: str) -> ResidentShell:
        """Open a new shell. Raises `SandboxError`."""
        if "\0" in (cwd or ""):
            raise SandboxError(f"A shell cannot be opened in the folder {cwd!r}: the path holds a NUL byte.")
        if (fault := variable_fault(env or {})) is not None:
            raise SandboxError(f"A shell cannot be given its environment: a variable {fault}.")
        shell = cls(channel)
        pairs = [as_bytes(f"{name}={value}") for name, value in (env or {}).items()]
        fields = [check_user(user).encode(), as_bytes(cwd or ""), *pairs]
        channel.relays[shell.number] = shell._receive
        channel.journal.record_request(shell.number, SHELL, fields)
        channel.write(frame(shell.number, SHELL, fields))
        try:
            await shell._until(shell._named)
        except BaseException:
            channel.send(shell.number, CANCEL)
            shell._forget()
            raise
        if shell.fault is not None:
            raise SandboxError(f"The sandbox {channel.sandbox_id} cannot open a shell: {shell.fault}.")
        return shell

    async def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = 1 << 20) -> ExecResult:
        if "\0" in command:
            return NO_COMMAND
        async with self._turn:
            if self.channel.closed.is_set():
                raise self.channel.error()
            if self.fault is not None:
                raise SandboxError(
                    f"The shell of the sandbox {self.channel.sandbox_id} {self.fault}; open another one."
                )
            fields = [self.name, str(timeout_s).encode(), str(max_output_bytes).encode(), as_bytes(command)]
            return await run(self.channel, RUN, fields, timeout_s)

    async def close(self) -> None:
        if self.fault is not None or self.channel.closed.is_set():
            return
        self.channel.send(self.number, CANCEL)
        try:
            await self._until(self._over)
        except SandboxError:
            return  # the sandbox has ended, and the shell with it

    def _receive(self, kind: bytes, payload: bytes) -> None:
        """Take a frame of the resident: its name for the shell, or the shell's end."""
        fields = unpack(payload)
        if kind == DATA and len(fields) == 1 and not self.name:
            self.name = fields[0][:20]
            self.channel.resting.add(self.number)  # only now: while it is being opened, the sandbox is not idle
        else:
            self._forget()
            reason = b" ".join(fields[1:]).decode("utf-8", "replace")
            self.fault = reason if kind == FAILED else "has been closed"
            self._over.set()
        self._named.set()

    def _forget(self) -> None:
        self.channel.relays.pop(self.number, None)
        self.channel.resting.discard(self.number)

    async def _until(self, event: asyncio.Event) -> None:
        """Wait until the resident sets an event; of many at once it may be the last, so only a silent resident counts
        as dead. Raises `SandboxError` if the sandbox is gone."""
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self.channel.closed.wait())]
        time = asyncio.get_running_loop().time
        began = time()
        try:
            while (left_s := max(began, self.channel.heard_at) + GRACE_S - time()) > 0:
                done, _ = await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    break
        finally:
            for each in waits:
                each.cancel()
        if not event.is_set():
            self.channel.close(f"its resident process did not answer within {GRACE_S:.0f} s")
            raise self.channel.error()
