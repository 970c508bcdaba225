"""The processes that E2B's SDK has started in one sandbox: `process.Process`.

1. A process outlives the request that started it. Its output goes to every request that follows it, and nowhere if none
   does, as with `envd`. A request that follows and does not read holds the process up; one that leaves no longer does.
2. The time-out of the starting request ends the process and everything that it started.
3. A process that has ended is no longer known.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from ale.errors import SandboxError
from ale.specs.sandbox import ExecResult, Sandbox
from ale.specs.sandbox_protocols import Output, Streams, lacks
from ale_rock.worker.envd.connect import ConnectError, last_frame, message_frame
from ale_rock.worker.envd.start_script import OPEN_INPUT, Started, StartScript

MOST_PROCESSES = 256
WAITING = 64
"""Pieces of output that wait for one reader before the process is held up."""
MOST_REASON_BYTES = 64 << 10
INPUT_S, SIGNAL_S = 60.0, 30.0
SIGNALS = {"SIGNAL_SIGKILL": (9, "killed"), "SIGNAL_SIGTERM": (15, "terminated")}


@dataclass(frozen=True, slots=True)
class Order:
    """What to start."""

    words: list[str]
    env: dict[str, str]
    cwd: str | None
    timeout_s: float
    has_input: bool = False
    size: tuple[int, int] | None = None
    """Rows and columns of the terminal; None: the process gets none."""
    tag: str | None = None

    def config(self) -> dict[str, Any]:
        """Return it as `process.ProcessConfig`."""
        cwd = {} if self.cwd is None else {"cwd": self.cwd}
        return {"cmd": self.words[0], "args": self.words[1:], "envs": self.env, **cwd}


@dataclass(slots=True, eq=False)
class Process:
    """A process that runs. `begun` says what its start printed, or fails."""

    order: Order
    holder: int | None
    """The process that holds its standard input open; None: the input is empty."""
    begun: asyncio.Future[Started]
    followed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by its first reader; its output waits for that."""
    readers: set[asyncio.Queue[bytes | None]] = field(default_factory=set)
    """Frames for the requests that follow it; None after the last."""
    signal: tuple[int, str] | None = None
    """The last signal that was sent to it."""
    work: asyncio.Task[None] | None = None

    @property
    def started(self) -> Started:
        """What its start printed."""
        return self.begun.result()

    async def hand_out(self, frame: bytes | None) -> None:
        """Give a frame to every reader."""
        for reader in list(self.readers):
            if reader in self.readers:
                await reader.put(frame)

    async def follow(self, keepalive_s: float | None, limit_s: float | None) -> AsyncGenerator[bytes, None]:
        """Yield nothing at first, which begins to follow it; then its id, its output from now on, and its end."""
        reader: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING)
        self.readers.add(reader)
        self.followed.set()
        loop = asyncio.get_running_loop()
        until = None if limit_s is None else loop.time() + limit_s
        try:
            yield b""
            yield message_frame({"event": {"start": {"pid": self.started.pid}}})
            while True:
                pauses = [keepalive_s, None if until is None else max(0.0, until - loop.time())]
                try:
                    async with asyncio.timeout(min((pause for pause in pauses if pause is not None), default=None)):
                        frame = await reader.get()
                except TimeoutError:
                    if until is not None and loop.time() >= until:
                        yield last_frame(ConnectError("deadline_exceeded", "The time of this request is over"))
                        return
                    yield message_frame({"event": {"keepalive": {}}})
                    continue
                if frame is None:
                    return
                yield frame
        finally:
            self.readers.discard(reader)
            while not reader.empty():  # a process that waits for this reader goes on
                reader.get_nowait()


class Processes:
    """The processes of one sandbox, by their ids."""

    def __init__(self) -> None:
        self._running: dict[int, Process] = {}
        self._starting = 0

    async def start(self, sandbox: Sandbox, order: Order) -> Process:
        """Start a process. Its output waits until it is followed. Raises `ConnectError` or `SandboxError`."""
        if not isinstance(sandbox, Streams):
            raise ConnectError("unimplemented", str(lacks(sandbox, Streams)))
        if len(self._running) + self._starting >= MOST_PROCESSES:
            raise ConnectError(
                "resource_exhausted", f"A sandbox has at most {MOST_PROCESSES} processes of E2B at once; end some."
            )
        self._starting += 1
        try:
            holder = await _open_input(sandbox) if order.has_input or order.size is not None else None
            process = Process(order, holder, asyncio.get_running_loop().create_future())
            process.work = asyncio.create_task(self._run(sandbox, process))
            started = await asyncio.shield(process.begun)
        finally:
            self._starting -= 1
        self._running[started.pid] = process
        return process

    def list(self) -> list[dict[str, Any]]:
        """Return the running processes as `process.ProcessInfo`."""
        return [
            {"pid": pid, "config": each.order.config(), **({} if each.order.tag is None else {"tag": each.order.tag})}
            for pid, each in self._running.items()
        ]

    def find(self, selector: object) -> Process:
        """Return the process that a `process.ProcessSelector` names. Raises `ConnectError`."""
        named = selector if isinstance(selector, dict) else {}
        pid, tag = named.get("pid"), named.get("tag")
        for own, process in self._running.items():
            if own == pid or (tag is not None and process.order.tag == tag):
                return process
        raise ConnectError(
            "not_found", f"No process with the {'pid' if tag is None else 'tag'} {str(tag or pid)[:100]} runs."
        )

    async def _run(self, sandbox: Sandbox, process: Process) -> None:
        assert isinstance(sandbox, Streams), "`start` has checked it"
        order, begun = process.order, process.begun
        failed = ConnectError("unavailable", "The sandbox has ended.")
        script = StartScript(order.words, holder=process.holder, size=order.size)
        stream = sandbox.exec_stream(script.text, timeout_s=order.timeout_s, cwd=order.cwd, env=order.env)
        errors, end = b"", [last_frame(failed)]
        try:
            async with aclosing(stream):
                async for item in stream:
                    if isinstance(item, ExecResult):
                        failed = _not_started(order, item, errors)
                        end = _ending(process, item)
                    elif begun.done():
                        await process.hand_out(_data(order, item))
                    elif item.stream == "stderr":
                        errors = (errors + item.data)[:MOST_REASON_BYTES]
                    else:
                        started, rest = script.read(item.data)
                        if started is not None:
                            begun.set_result(started)
                            await process.followed.wait()
                            for piece in (Output("stderr", errors), Output("stdout", rest)):
                                if piece.data:
                                    await process.hand_out(_data(order, piece))
        except SandboxError as error:
            failed = ConnectError("unavailable", str(error))
            end = [last_frame(failed)]
        except ValueError as error:
            failed = ConnectError("invalid_argument", f"The process was not started: {error}.")
        if begun.done():
            self._running.pop(process.started.pid, None)
            for frame in (*end, None):
                await process.hand_out(frame)
        else:
            begun.set_exception(failed)
        with suppress(SandboxError):
            await self.close_input(sandbox, process)

    # --- what is done to a process

    async def send_input(self, sandbox: Sandbox, process: Process, data: bytes) -> None:
        """Write to the standard input, or to the terminal. Raises `ConnectError` or `SandboxError`."""
        pid = process.started.pid
        if process.holder is None:
            raise ConnectError(
                "failed_precondition",
                f"The process {pid} has no open standard input; start it with stdin=True, and send before close_stdin.",
            )
        done = await sandbox.exec(f"exec cat >/proc/{process.holder}/fd/1", stdin=data, timeout_s=INPUT_S)
        if done.timed_out:
            raise ConnectError("deadline_exceeded", f"The process {pid} does not read its input")
        if done.exit_code:
            raise ConnectError("failed_precondition", f"The process {pid} reads no input any more.")

    async def close_input(self, sandbox: Sandbox, process: Process) -> None:
        """End the standard input. It is idempotent. Raises `SandboxError`."""
        holder, process.holder = process.holder, None
        if holder is not None:
            await sandbox.exec(f"kill -9 {holder}", timeout_s=SIGNAL_S)

    async def send_signal(self, sandbox: Sandbox, process: Process, signal: object) -> None:
        """Send a signal to the process and what it started. Raises `ConnectError` or `SandboxError`."""
        chosen = next((each for name, each in SIGNALS.items() if signal in (name, each[0])), None)
        if chosen is None:
            raise ConnectError("invalid_argument", f"A signal is one of {', '.join(SIGNALS)}, not {str(signal)[:100]}.")
        pid, before = process.started.pid, process.signal
        process.signal = chosen
        if (await sandbox.exec(f"kill -{chosen[0]} -- -{pid}", timeout_s=SIGNAL_S)).exit_code:
            process.signal = before
            raise ConnectError("not_found", f"The process {pid} has ended.")

    async def resize(self, sandbox: Sandbox, process: Process, rows: int, columns: int) -> None:
        """Change the size of the terminal. Raises `ConnectError` or `SandboxError`."""
        terminal = process.started.terminal
        if terminal is None:
            raise ConnectError("failed_precondition", f"The process {process.started.pid} has no terminal.")
        size = f"rows {rows} cols {columns}"
        done = await sandbox.exec(f"stty -F {quote(terminal)} {size}", timeout_s=SIGNAL_S)
        if done.exit_code:
            raise ConnectError("failed_precondition", f"The terminal cannot be resized: {done.output.strip()}.")


async def _open_input(sandbox: Sandbox) -> int:
    """Make a pipe in a sandbox and return the process that holds it open. Raises `ConnectError` or `SandboxError`."""
    done = await sandbox.exec(OPEN_INPUT, timeout_s=SIGNAL_S)
    holder = done.stdout.decode("ascii", "replace").strip()
    if done.exit_code or not (holder.isascii() and holder.isdigit() and len(holder) <= 10):
        raise ConnectError("failed_precondition", f"No standard input can be made: {done.output.strip()[:1000]}.")
    return int(holder)


def _data(order: Order, piece: Output) -> bytes:
    name = "pty" if order.size is not None else piece.stream
    return message_frame({"event": {"data": {name: b64encode(piece.data).decode()}}})


def _ending(process: Process, done: ExecResult) -> list[bytes]:
    if done.timed_out:
        sentence = f"The process did not end within {process.order.timeout_s:g} s, so it was ended"
        return [last_frame(ConnectError("deadline_exceeded", sentence))]
    code, exited, status = done.exit_code, True, f"exit status {done.exit_code}"
    if process.signal is not None and code == 128 + process.signal[0]:
        code, exited, status = -1, False, f"signal: {process.signal[1]}"
    error = {"error": status} if code else {}
    end = {"exitCode": code, "exited": exited, "status": status, **error}
    return [message_frame({"event": {"end": end}}), last_frame()]


def _not_started(order: Order, done: ExecResult, errors: bytes) -> ConnectError:
    if done.timed_out:
        return ConnectError("deadline_exceeded", f"The process did not start within {order.timeout_s:g} s")
    reason = (errors + done.stderr).decode("utf-8", "replace").strip() or f"its shell ended with {done.exit_code}"
    return ConnectError("invalid_argument", f"The process was not started: {reason}")
