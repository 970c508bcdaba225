"""The trainer's side of the file protocol: answers what an agent without any network writes to a log
(`relays/file_service.py`).

1. A *link* reads and appends. `FolderLink` is for a log whose folder is on this host. `SandboxLink` is for one in a
   sandbox that shares no folder: it runs `relays/request_log.py` in there, and one call waits for new lines, so that
   nothing is polled.
2. Requests are answered through the session, several at once, each in whatever order it is done.
3. What the log already holds counts: after a restart only what has no answer is answered. A request that is written
   again, since the file was rotated before it was answered, is the same request.
4. The agent may have written anything into the log: it is read as data, and lines that are no records are reported.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ale.errors import AgentError
from ale.specs.sandbox import Sandbox
from ale.specs.scaffold import ModelSession
from ale_endpoint.dialects import ChatCompletions
from ale_endpoint.dialects.pictures import Pictures
from ale_endpoint.http_app import HttpError, as_http_error, call_of
from ale_endpoint.relays import script
from ale_endpoint.relays.request_log import MOST_LINE, Log, Record, append, digest, encode, parse

log = logging.getLogger("ale.endpoint.files")
AT_ONCE = 32
POLL_S, WAIT_S = 0.02, 20.0
TRIES = 3
SCRIPT = "/tmp/ale-log.py"
Report = Callable[[str], None]


class Link(ABC):
    """Access to a log."""

    @abstractmethod
    async def read(self, wait_s: float) -> tuple[list[bytes], list[str]]:
        """The next whole lines, and sentences about what was lost; waits so long for either."""

    @abstractmethod
    async def append(self, lines: bytes) -> None:
        """Add whole lines."""

    @abstractmethod
    def close(self) -> None:
        """Release what it holds."""


class FolderLink(Link):
    """A log in a folder of this host, such as one that is mounted into the sandbox."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = Log(str(path))

    async def read(self, wait_s: float) -> tuple[list[bytes], list[str]]:
        until = time.monotonic() + wait_s
        while True:
            lines = self._log.read()
            if lines or self._log.notes or time.monotonic() >= until:
                notes, self._log.notes = self._log.notes, []
                return lines, notes
            await asyncio.sleep(POLL_S)

    async def append(self, lines: bytes) -> None:
        while True:
            try:
                return await asyncio.to_thread(append, str(self.path), lines, False)
            except FileNotFoundError:  # rotated: the service makes it anew, as a file of its own user
                await asyncio.sleep(POLL_S)

    def close(self) -> None:
        self._log.close()


class SandboxLink(Link):
    """A log in a sandbox that has a Python of 3.8 or newer; everything is done as the agent's user."""

    def __init__(self, sandbox: Sandbox, path: str, python: str = "python3") -> None:
        self.sandbox, self.path, self.python = sandbox, path, python
        self._place: dict[str, Any] = {}
        self._uploaded = False

    async def read(self, wait_s: float) -> tuple[list[bytes], list[str]]:
        place = shlex.quote(json.dumps(self._place))
        output = await self._run(f"read --wait {wait_s:g} --place {place}", timeout_s=wait_s + 60)
        first, _, rest = output.partition(b"\n")
        try:
            place, notes = json.loads(first)
            self._place = {"inode": int(place["inode"]), "offset": int(place["offset"]), "head": str(place["head"])}
            notes = [str(note)[:300] for note in notes[:10]]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise AgentError(f"What reads the log {self.path} in the sandbox says {first[:100]!r}.") from error
        return [line for line in rest.split(b"\n") if line], notes

    async def append(self, lines: bytes) -> None:
        await self._run("append", stdin=lines, timeout_s=60)

    def close(self) -> None:
        pass

    async def _run(self, arguments: str, *, timeout_s: float, stdin: bytes = b"") -> bytes:
        """Run the script; up to `TRIES` times, since a failure may be temporary. Raises `AgentError`."""
        command = f"{self.python} {SCRIPT} {arguments} {shlex.quote(self.path)}"
        for left in reversed(range(TRIES)):
            if not self._uploaded:
                await self.sandbox.upload({SCRIPT: script("log").encode()})
                self._uploaded = True
            done = await self.sandbox.exec(command, timeout_s=timeout_s, stdin=stdin, max_output_bytes=MOST_LINE * 2)
            if done.exit_code == 0 and not done.truncated:
                return done.stdout
            self._uploaded = False
            await asyncio.sleep(0.5 if left else 0)
        raise AgentError(
            f"The log {self.path} cannot be reached in the sandbox, which needs {self.python} of 3.8 or newer: "
            f"exit code {done.exit_code}, {done.output[-300:]!r}."
        )


@dataclass(slots=True)
class _Request:
    """A request of the log. Two of one index are the same where their keys are."""

    key: tuple[Any, str]
    body: Any
    answer: bytes | None = None
    """The line of the log."""
    task: asyncio.Task[None] | None = None


async def answer_log(
    session: ModelSession,
    link: Link,
    *,
    at_once: int = AT_ONCE,
    report: Report = log.warning,
    pictures: Pictures = "refuse",
) -> None:
    """Answer every request of a log through a session, until the log says that the session has ended.

    `report` is called with a sentence for each line that is no record. It never returns before the end: set a deadline.
    Raises what the link raises (`SandboxError`, `AgentError`, `OSError`)."""
    answering = _Answering(session, link, at_once, report, pictures)
    try:
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(answering.write())
            await answering.follow(group)
            writing.cancel()
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        link.close()


class _Answering:
    def __init__(self, session: ModelSession, link: Link, at_once: int, report: Report, pictures: Pictures) -> None:
        self.session, self.link, self.report, self.pictures = session, link, report, pictures
        self.requests: dict[int, _Request] = {}
        self.places = asyncio.Semaphore(at_once)
        self.outbox: asyncio.Queue[bytes] = asyncio.Queue()

    async def follow(self, group: asyncio.TaskGroup) -> None:
        """Read to the end of the session; what is there at first is read whole before anything is answered."""
        caught_up, ended = False, False
        while not ended:
            lines, notes = await self.link.read(WAIT_S if caught_up else 0)
            for note in notes:
                self.report(note)
            for line in lines:
                record = parse(line)
                if record is None:
                    self.report(f"A line that is no whole record is skipped: {line[:60]!r}.")
                elif record.kind == "end":
                    ended = True
                    break
                elif record.kind == "request":
                    self.note_request(record)
                else:
                    self.note_response(record, line)
            caught_up = caught_up or not lines
            for index, request in self.requests.items():
                if caught_up and not ended and request.answer is None and request.task is None:
                    request.task = group.create_task(self.answer(index, request))
        for request in self.requests.values():
            if request.task is not None:
                request.task.cancel()  # nobody waits for it

    def note_request(self, record: Record) -> None:
        """Note a request, which may be the repetition of an earlier one."""
        key = (record.meta.get("timestamp"), digest(record.body))
        known = self.requests.get(record.number)
        if known is None or known.key != key:
            if known is not None and known.task is not None:
                known.task.cancel()
            self.requests[record.number] = _Request(key, record.body)
        elif known.answer is not None:
            self.outbox.put_nowait(known.answer)

    def note_response(self, record: Record, line: bytes) -> None:
        """Note a response, which is our own or was written before a restart."""
        known = self.requests.get(record.number)
        if known is None:
            self.report(f"An answer to request {record.number}, which was not asked, is ignored.")
        elif known.task is None:
            known.answer = line + b"\n"

    async def answer(self, index: int, request: _Request) -> None:
        """Answer one request, and queue the answer for the log."""
        async with self.places:
            status, body = await self.reply(request.body)
        more = {} if status == 200 else {"status": status}
        request.answer, request.body = encode("response", body, index, **more), None
        self.outbox.put_nowait(request.answer)

    async def reply(self, body: Any) -> tuple[int, dict[str, Any]]:
        """Ask the session; the status and body are those of HTTP."""
        dialect = ChatCompletions()
        try:
            try:
                call = call_of(dialect, body, self.pictures)
            except HttpError as refused:
                self.session.fault = refused.as_fault()
                raise
            with as_http_error(self.session):
                made = await self.session.answer(call)
                return 200, dialect.answer(call, made, f"{self.session.id}-{made[0].chunk}")
        except HttpError as refused:
            return refused.status, dialect.error(refused.status, refused.code, refused.message)

    async def write(self) -> None:
        """Append answers without end, all that are ready in one write."""
        while True:
            lines = [await self.outbox.get()]
            while not self.outbox.empty():
                lines.append(self.outbox.get_nowait())
            await self.link.append(b"".join(lines))
