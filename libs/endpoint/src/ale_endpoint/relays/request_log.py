"""A log of model calls in a file: the records of the file protocol, read and written by several processes at once.

Needs Python 3.8 or newer and nothing else, for it runs in sandboxes too. The log is append-only, and a record is a
line: `LLM_REQUEST_START{json}LLM_REQUEST_END{"timestamp": ms, "index": n}`, the same with `RESPONSE`, or `SESSION_END`.

1. A writer holds a lock and writes a record in one piece, on a fresh line. Markers and line ends in its JSON are
   escaped.
2. A reader takes whole lines. It looks for the outermost markers of a line, because other writers may not escape those
   in a message.
3. A reader goes on reading after the file was rotated (to a name that begins with the log's) or truncated.
4. `ale_endpoint.file_protocol` runs `python3 request_log.py read LOG` and `append LOG` in a sandbox whose files it
   cannot reach otherwise.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import stat
import sys
import time
from typing import Any, BinaryIO, NamedTuple

POLL_S, LOCK_S = 0.02, 5.0
MOST_LINE, HEAD_BYTES = 32 << 20, 256
MARKS = {
    "request": (b"LLM_REQUEST_START", b"LLM_REQUEST_END"),
    "response": (b"LLM_RESPONSE_START", b"LLM_RESPONSE_END"),
}
SESSION_END = b"SESSION_END"
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
WRITE = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Record(NamedTuple):
    """A line of the log."""

    kind: str
    """`request`, `response` or `end`."""
    number: int = 0
    """Its index: that of a request, or of the request that is answered; from 1."""
    body: Any = None
    meta: dict[str, Any] = {}  # noqa: RUF012


def encode(kind: str, body: Any, index: int, timestamp: int | None = None, **more: Any) -> bytes:
    """A record as a line. A marker in a text is written with an escape, so that no reader can take it for one."""
    at = int(time.time() * 1000) if timestamp is None else timestamp
    start, end = (mark.decode() for mark in MARKS[kind])
    text = json.dumps(body).replace("LLM_RE", "LLM_\\u0052E").replace("SESSION_E", "SESSION_\\u0045")
    return (start + text + end + json.dumps({"timestamp": at, "index": index, **more}) + "\n").encode()


def parse(line: bytes) -> Record | None:
    """Read the record of a line, also one behind the torn record of a writer that died; None if the line holds none."""
    line = line.strip()
    if line == SESSION_END:
        return Record("end")
    at, kind = max((line.rfind(end), kind) for kind, (_, end) in MARKS.items())
    start, end = MARKS[kind]
    for begin in (0 if line.startswith(start) else -1, line.rfind(start, 0, max(at, 0))):
        if begin < 0 or at < 0:
            continue
        try:
            body, meta = json.loads(line[begin + len(start) : at]), json.loads(line[at + len(end) :])
        except (ValueError, RecursionError):
            continue
        index = meta.get("index") if isinstance(meta, dict) else None
        if isinstance(index, int) and not isinstance(index, bool) and index > 0:
            return Record(kind, index, body, meta)
    return None


def digest(body: Any) -> str:
    """A hash by which two requests are compared."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


# --- the file


def open_regular_file(path: str, flags: int) -> int:
    """Open a regular file that is no link, since the other side may have put anything there. Raises `OSError`."""
    fd = os.open(path, flags, 0o666)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(f"{path} is no regular file")


def lock(fd: int) -> None:
    """Keep other writers out for as long as `LOCK_S`; a line is written in one piece even without the lock."""
    until = time.monotonic() + LOCK_S
    while time.monotonic() < until:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(POLL_S / 4)


def is_at(path: str, fd: int) -> bool:
    """Whether the file of a descriptor is still the one at a path; one that was taken away, and no other there, is."""
    try:
        return os.lstat(path).st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return True


def append(path: str, lines: bytes, create: bool = True) -> None:
    """Add lines to the log, on a fresh one. Raises `OSError`."""
    while True:
        fd = open_regular_file(path, WRITE | (os.O_CREAT if create else 0))
        try:
            lock(fd)
            if not is_at(path, fd) or not os.fstat(fd).st_nlink:
                continue  # rotated meanwhile
            size = os.fstat(fd).st_size
            torn = size and os.pread(fd, 1, size - 1) != b"\n"
            left = b"\n" + lines if torn else lines
            while left:
                left = left[os.write(fd, left) :]
            return
        finally:
            os.close(fd)


class Log:
    """Reads a log as it grows. `notes` are sentences about what was lost; the reader clears them."""

    def __init__(self, path: str, inode: int = 0, offset: int = 0, head: str = "") -> None:
        self.path, self.inode, self.offset, self.head = path, inode, offset, bytes.fromhex(head)
        self.fd = self.size = -1
        self.notes: list[str] = []

    def place(self) -> dict[str, Any]:
        """The place up to which it has read, from which another `Log` can go on."""
        return {"inode": self.inode, "offset": self.offset, "head": self.head.hex()}

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = self.size = -1

    def read(self, limit: int = 4 << 20) -> list[bytes]:
        """The next whole lines, without their ends; about `limit` bytes. None where nothing is new, or no file is
        there."""
        if self.fd < 0 and not self._open():
            return []
        lines = self._lines(limit)
        if not lines and not is_at(self.path, self.fd):
            lines = self._lines(limit)  # what came before it was taken away
            if not lines:
                if os.fstat(self.fd).st_size > self.offset:
                    self.notes.append(f"The log ended in half a line at byte {self.offset} when it was rotated.")
                self.close()
                self.inode, self.offset, self.head = 0, 0, b""
                lines = self._lines(limit) if self._open() else []
        return lines

    def _open(self) -> bool:
        try:
            self.fd = open_regular_file(self.path, READ)
        except FileNotFoundError:
            return False
        if self.inode not in (0, os.fstat(self.fd).st_ino):
            self.close()
            self.fd = self._open_rotated()
        self.inode = os.fstat(self.fd).st_ino
        return True

    def _open_rotated(self) -> int:
        """The file that was read so far, under the name that it has now; else the new one, from its beginning."""
        folder, name = os.path.split(self.path)
        for entry in os.scandir(folder or "."):
            if entry.name.startswith(name) and entry.inode() == self.inode and entry.is_file(follow_symlinks=False):
                return open_regular_file(entry.path, READ)
        self.notes.append("The log was replaced, and the file before it is gone.")
        self.offset, self.head = 0, b""
        return open_regular_file(self.path, READ)

    def _lines(self, limit: int) -> list[bytes]:
        size = os.fstat(self.fd).st_size
        if size < self.offset or os.pread(self.fd, len(self.head), 0) != self.head:
            self.notes.append(f"The log was truncated; it was read up to byte {self.offset}.")
            self.offset, self.head, self.size = 0, b"", -1
        if size == self.size:
            return []  # no more of the half line, which may be a long one
        while True:
            data = os.pread(self.fd, limit, self.offset)
            end = data.rfind(b"\n") + 1
            if end or len(data) < limit:
                break
            if limit >= MOST_LINE:
                self.notes.append(f"A line of more than {MOST_LINE} bytes is skipped.")
                end = len(data)
                break
            limit = min(limit * 8, MOST_LINE)
        self.offset += end
        self.size = -1 if end else size
        if len(self.head) < HEAD_BYTES:
            self.head = os.pread(self.fd, min(HEAD_BYTES, self.offset), 0)
        return [line for line in data[:end].split(b"\n") if line]


# --- the command line


def read(path: str, place: str, wait_s: float, limit: int, out: BinaryIO) -> str:
    """Print where the log then stands, in a line of JSON, and the next lines, for which it waits a while."""
    log, until = Log(path, **json.loads(place)), time.monotonic() + wait_s
    lines = log.read(limit)
    while not lines and not log.notes and time.monotonic() < until:
        time.sleep(POLL_S)
        lines = log.read(limit)
    out.write(b"".join(line + b"\n" for line in [json.dumps([log.place(), log.notes]).encode(), *lines]))
    out.flush()
    return ""


def main() -> str:
    """Run the command line; return what went wrong."""
    parser = argparse.ArgumentParser(description="Read and write a log of model calls.")
    commands = parser.add_subparsers(dest="command", required=True)
    reading = commands.add_parser("read", help="print what is new")
    reading.add_argument("--place", default="{}")
    reading.add_argument("--wait", type=float, default=0.0)
    reading.add_argument("--limit", type=int, default=4 << 20)
    appending = commands.add_parser("append", help="add lines from standard input")
    for command in (reading, appending):
        command.add_argument("log", metavar="LOG")
    given = parser.parse_args()
    try:
        if given.command == "read":
            return read(given.log, given.place, given.wait, given.limit, sys.stdout.buffer)
        append(given.log, sys.stdin.buffer.read())
    except OSError as error:
        return f"The log {given.log} cannot be had: {error}."
    return ""


if __name__ == "__main__":
    sys.exit(main() or None)
