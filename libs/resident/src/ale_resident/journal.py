"""What happened in a sandbox lately: the last thousand lines, kept by its owner.

The channel tells of each request and of its end; `note` is for everything else, such as network that was refused. A line
holds no secret of the run, is printable whatever a command holds, and is made when it is read.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from ale_resident.inside.wire import DONE, EXEC, KILL, READ, RUN, SHELL, STREAM, TREE, WRITE

LINES, LINE_CHARS = 1000, 200
REDACTED_CHARS = 1 << 12
"""So much of a text is looked at for secrets; more than is shown, or half of one could be left at the end."""


class Journal:
    """Lines with their times. `redact` takes secrets out of a text."""

    def __init__(self) -> None:
        self.redact: Callable[[str], str] = str
        self.entries: deque[tuple[float, str]] = deque(maxlen=LINES)
        self.open: dict[int, tuple[float, str]] = {}
        """Commands under way: when each began, and what its end is to be called."""

    def note(self, line: str) -> None:
        """Put a line down."""
        self.entries.append((time.time(), self.redact(line[:REDACTED_CHARS])[:LINE_CHARS]))

    def began(self, number: int, kind: bytes, fields: Sequence[bytes], who: str = "") -> None:
        """A request goes out; `who` is the attached process that made it."""
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

    def ended(self, number: int, kind: bytes, payload: bytes) -> None:
        """The answer to a request has come."""
        if number not in self.open:
            return
        began, name = self.open.pop(number)
        try:
            code = payload[4 : 4 + int.from_bytes(payload[:4], "big")]  # the first field; the others may be large
            end = f"exit code {int(code)}" if kind == DONE else "it could not be run"
        except ValueError:
            end = "an answer that makes no sense"
        self.note(f"{name} ended after {time.monotonic() - began:.3f} s: {end}")

    def __str__(self) -> str:
        """All lines, the oldest first, each with its time (UTC)."""
        return "".join(f"{clock(at)} {printable(line)}\n" for at, line in self.entries)


def text(field: bytes) -> str:
    """As much of a field as a line could need."""
    return field[:REDACTED_CHARS].decode("utf-8", "replace")


def as_user(role: bytes) -> str:
    """Who a command runs as, where it is not the agent."""
    return "" if role == b"agent" else f" as {text(role)}"


def clock(at: float) -> str:
    """A time as people write it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at * 1000) % 1000:03d}Z"


def printable(line: str) -> str:
    """A line that does nothing to a terminal: what is no character to see becomes its escape."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in line)
