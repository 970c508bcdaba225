"""A sandbox with a resident: calls become requests to it. Providers say what `stop` has to remove (`clean_up`)."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ale.errors import SandboxError
from ale.specs.driver import DriverContext
from ale.specs.sandbox import AGENT, ExecResult, Sandbox, SandboxSpec
from ale.specs.sandbox_protocols import Output, SandboxStats
from ale_sandbox.host import commands, output_stream
from ale_sandbox.host import tree_transfers as transfers
from ale_sandbox.host.channel import Channel
from ale_sandbox.host.commands import NO_COMMAND, as_bytes, check_user
from ale_sandbox.host.journal import printable
from ale_sandbox.host.port_connection import PortConnection
from ale_sandbox.host.shell import ResidentShell
from ale_sandbox.network.egress_gate import BlockedConnection, Gate, report
from ale_sandbox.resident.frames import EXEC, INIT, KILL, READ, USAGE, WRITE

START_S = 60.0
"""A sandbox that is not ready after this long never will be; on a busy machine many may start at once."""
PIECE_BYTES = 1 << 20
"""Uploads are sent in pieces of about this size."""
READ_SLACK_BYTES = 1 << 20


class ResidentSandbox(Sandbox):
    """A sandbox that this process owns. `on_stopped` is called once, when everything is removed."""

    def __init__(
        self, sandbox_id: str, spec: SandboxSpec, channel: Channel, on_stopped: Callable[[Any], object]
    ) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.channel = channel
        self.on_stopped = on_stopped
        self.stopping: asyncio.Task[None] | None = None
        self.journal = channel.journal
        self.timers: dict[str, asyncio.TimerHandle] = {}
        self.gate: Gate | None = None
        self.run_labels: Mapping[str, str] = {}
        self.disk_mib: int | None = None
        """The most that fits into each of its writable places; None if the provider limits none."""

    @abstractmethod
    async def clean_up(self) -> None:
        """After the connection is closed: wait for the sandbox's end, force it if needed, and remove what is left."""

    async def stats(self) -> SandboxStats:
        """Return what the sandbox uses; unknown unless a provider overrides this."""
        return SandboxStats()

    async def set_up(self, constants: list[bytes], files: Mapping[str, bytes]) -> None:
        """Send the resident its constants and write the first files; returns when the sandbox is ready."""
        first, ready = self.channel.begin(INIT, constants)
        try:
            async with asyncio.timeout(START_S):
                await ready
        except TimeoutError:
            raise SandboxError(f"The sandbox {self.id} did not start within {START_S:.0f} s.") from None
        except OSError as error:
            raise SandboxError(f"The sandbox {self.id} could not be set up: {error.strerror or error}.") from error
        finally:
            self.channel.calls.pop(first, None)
        if files:
            await self.upload(files)
        self.begin_timers()

    def begin_timers(self) -> None:
        """Count the spec's lifetime and idle time from now on."""
        if self.spec.lifetime_s is not None:
            loop = asyncio.get_running_loop()
            self.timers["life"] = loop.call_later(self.spec.lifetime_s, self.begin_stop, "its lifetime is over")
        if self.spec.idle_s is not None:
            self.watch_idleness(self.spec.idle_s)

    @property
    def name(self) -> str:
        """Its name in errors: its id, unless it was started for a pool before an episode took it."""
        return self.channel.sandbox_id

    @property
    def labels(self) -> dict[str, str]:
        """The run's labels and the sandbox's own."""
        return {**self.run_labels, **self.spec.labels}

    def watch_idleness(self, idle_s: float) -> None:
        """Stop the sandbox once it has had no request for `idle_s`; check again when that could be the case."""
        loop = asyncio.get_running_loop()
        left = idle_s if self.channel.busy else self.channel.quiet_since + idle_s - loop.time()
        if left <= 0:
            self.begin_stop(f"it was idle for {idle_s:g} s")
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
        fields = commands.request(
            command, timeout_s=timeout_s, limit=max_output_bytes, cwd=cwd, env=env, stdin=stdin, user=user
        )
        return NO_COMMAND if fields is None else await commands.run(self.channel, EXEC, fields, timeout_s)

    def exec_stream(
        self,
        command: str,
        *,
        timeout_s: float = 60.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        user: str = AGENT,
    ) -> AsyncGenerator[Output | ExecResult, None]:
        fields = commands.request(
            command, timeout_s=timeout_s, limit=output_stream.WINDOW, cwd=cwd, env=env, stdin=stdin, user=user
        )
        return output_stream.run(self.channel, fields, timeout_s)

    async def open_shell(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: str = AGENT
    ) -> ResidentShell:
        return await ResidentShell.open(self.channel, cwd, env, user)

    async def connect(self, port: int) -> PortConnection:
        """Connect to a program that listens at a port of the sandbox's own loopback address. Raises `OSError` if none
        does."""
        return await PortConnection.open(self.channel, port)

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        head = [check_user(user).encode(), f"{mode:o}".encode()]
        batch: list[bytes] = []
        size = 0
        for path, content in files.items():
            if not path or "\0" in path:
                raise SandboxError(f"The sandbox {self.name} cannot write a file named {path!r}.")
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
        """Send one request of an upload."""
        try:
            await self.channel.ask(WRITE, fields, 60.0)
        except OSError as error:
            names = ", ".join(os.fsdecode(path) for path in fields[3::2][:3])
            raise SandboxError(f"The sandbox {self.name} could not write {names}: {error.strerror}.") from error

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        return await self.read(path, max_bytes)

    async def read(self, path: str, max_bytes: int, offset: int | None = None) -> bytes:
        """Read a file of at most `max_bytes`, or, with an offset, so many bytes of it from there on."""
        limits = (max_bytes,) if offset is None else (max_bytes, offset)
        fields = [as_bytes(path), *(str(limit).encode() for limit in limits)]
        most_bytes = max_bytes + max_bytes // 1000 + READ_SLACK_BYTES  # each piece comes with its length
        try:
            pieces = await self.channel.ask(READ, fields, 120.0, most_bytes)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise type(error)(error.errno, error.strerror, path) from None
        except NotADirectoryError as error:
            raise FileNotFoundError(error.errno, error.strerror, path) from None
        except OSError as error:
            raise SandboxError(f"The sandbox {self.name} could not read {path}: {error.strerror}.") from error
        return b"".join(pieces)

    async def upload_tree(self, source: Path, target: str, *, user: str = AGENT) -> None:
        """As the contract says; the tree is merged into a folder at `target`, whose files and links are replaced.

        A new folder at `target` is closed to other users if `user` is the tests' user.
        """
        await transfers.upload(self.channel, Path(source), as_bytes(target), check_user(user))

    async def download_tree(self, source: str, target: Path, *, max_bytes: int = 1 << 32) -> None:
        """As the contract says. The agent's rights apply. Raises `FileExistsError` if something is at `target`."""
        await transfers.download(self.channel, as_bytes(source), Path(target), max_bytes)

    async def kill_agent_processes(self) -> None:
        try:
            await self.channel.ask(KILL, [], 30.0)
        except OSError as error:
            raise SandboxError(f"The sandbox {self.name} could not be cleared: {error.strerror}.") from error

    def note(self, line: str) -> None:
        """Add a line to the sandbox's journal."""
        self.journal.note(line)

    async def logs(self) -> str:
        output = await self.startup_output()
        return str(self.journal) + "".join(f"its first process: {printable(line)}\n" for line in output.splitlines())

    async def startup_output(self) -> str:
        """Return the output of the sandbox's first process, which is usually empty."""
        return ""

    async def usage(self) -> SandboxStats:
        """Return the size of the files in memory and the network traffic, for `stats`."""
        try:
            memory, came, went = (int(field) for field in await self.channel.ask(USAGE, [], 60.0))
        except OSError:
            return SandboxStats()  # its /proc cannot be read
        except ValueError as error:
            raise SandboxError(f"The sandbox {self.name} gave an invalid answer ({error}).") from error
        if self.gate is not None:
            came, went = self.gate.bytes_in, self.gate.bytes_out
        return SandboxStats(disk_bytes=memory, network_in_bytes=came, network_out_bytes=went)

    async def stop(self) -> None:
        await asyncio.shield(self.begin_stop("it was stopped"))

    def begin_stop(self, reason: str) -> asyncio.Task[None]:
        """Start stopping, or join a running stop. It completes even if its caller is cancelled."""
        if self.stopping is None:
            for timer in self.timers.values():
                timer.cancel()
            self.note(f"the sandbox ends: {reason}")
            self.channel.close(reason)
            self.stopping = asyncio.get_running_loop().create_task(self._end())
        return self.stopping

    async def _end(self) -> None:
        try:
            await self.clean_up()
        finally:
            if self.gate is not None:
                await self.gate.close()
            self.on_stopped(self)

    def guard(self, gate: Gate | None, context: DriverContext) -> None:
        """Take over the gate of the sandbox's network: its refusals are reported from now on, and it closes with the
        sandbox."""
        self.gate, self.run_labels = gate, context.labels
        self.journal.redact = context.channel.redact
        if gate is not None:
            gate.refused = partial(self.refused, context)

    def refused(self, context: DriverContext, refusal: BlockedConnection) -> None:
        """Record a connection that the network policy refused."""
        self.note(f"network refused: {refusal}")
        report(self, context, refusal)
