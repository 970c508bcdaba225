"""The journal of a sandbox: the last thousand lines about what happened in it, kept by its owner.

The channel records each request and its end; `note` records everything else, such as refused network connections.
Lines are made when the journal is read; they are printable and hold no secret of the run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from ale_sandbox.resident.frames import DONE, EXEC, KILL, READ, RUN, SHELL, STREAM, TREE, WRITE

LINES, LINE_CHARS = 1000, 200
REDACTED_CHARS = 1 << 12
"""Secrets are removed from this much of a text: more than is shown, or half a secret could be left at its end."""


class Journal:
    """Lines with their times. `redact` removes secrets from a text."""

    def __init__(self) -> None:
        self.redact: Callable[[str], str] = str
        self.entries: deque[tuple[float, str]] = deque(maxlen=LINES)
        self.open: dict[int, tuple[float, str]] = {}
        """Running commands: when each began, and the name under which its end is recorded."""

    def note(self, line: str) -> None:
        """Add a line."""
        self.entries.append((time.time(), self.redact(line[:REDACTED_CHARS])[:LINE_CHARS]))

    def record_request(self, number: int, kind: bytes, fields: Sequence[bytes], who: str = "") -> None:
        """Record a request; `who` is the attached process that made it."""
        if kind in (EXEC, STREAM) and len(fields) > 4:
            name = f"{who}exec {number}"
            self.open[number] = (time.monotonic(), name)
            self.note(f"{name}{as_user(fields[2])}: {text(fields[4])}")
        elif kind == SHELL and fields:
            self.open[number] = (time.monotonic(), f"{who}shell {number}")
            self.note(f"{who}shell {number}{as_user(fields[0])} is opened")
        elif kind == RUN and len(fields) > 3:
            name = f"{who}exec {number}"
            self.open[number] = (time.monotonic(), name)
            self.note(f"{name} in shell {text(fields[0])}: {text(fields[3])}")
        elif kind == WRITE and fields[2:3] == [b"w"]:
            paths = [text(path) for path in fields[3::2]]
            self.note(f"{who}upload{as_user(fields[0])}: {', '.join(paths)}")
        elif kind == READ and fields:
            self.note(f"{who}download: {text(fields[0])}")
        elif kind == TREE and len(fields) > 1 and fields[0] in (b"in", b"out"):
            self.note(f"{who}{'upload' if fields[0] == b'in' else 'download'} of a tree: {text(fields[1])}")
        elif kind == KILL:
            self.note(f"{who}every process of the agent is ended")

    def record_answer(self, number: int, kind: bytes, payload: bytes) -> None:
        """Record the answer to a request."""
        if number not in self.open:
            return
        began, name = self.open.pop(number)
        try:
            code = payload[4 : 4 + int.from_bytes(payload[:4], "big")]  # the first field; the others may be large
            end = f"exit code {int(code)}" if kind == DONE else "it could not be run"
        except ValueError:
            end = "an invalid answer"
        self.note(f"{name} ended after {time.monotonic() - began:.3f} s: {end}")

    def __str__(self) -> str:
        """Return all lines, the oldest first, each with its time (UTC)."""
        return "".join(f"{clock(at)} {printable(line)}\n" for at, line in self.entries)


def text(field: bytes) -> str:
    """Decode as much of a field as a line could need."""
    return field[:REDACTED_CHARS].decode("utf-8", "replace")


def as_user(role: bytes) -> str:
    """Return ` as USER` if a command does not run as the agent."""
    return "" if role == b"agent" else f" as {text(role)}"


def clock(at: float) -> str:
    """Format a time for people."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at * 1000) % 1000:03d}Z"


def printable(line: str) -> str:
    """Make a line safe for a terminal: characters that cannot be seen become escapes."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in line)
