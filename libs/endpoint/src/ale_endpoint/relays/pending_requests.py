"""The requests of one log that the service in the sandbox (`file_service.py`) has open. It runs there, on Python 3.8 or
newer.

1. Each request has an index. Its answer is the response with that index, which must come after it in the log. Several
   requests may wait at once.
2. A client that hung up, or lost its connection when the service was restarted, may send the same request again: it
   gets the answer to the first one.
3. The last index is stored in `LOG.index`, so that no index is given twice, also if the log is rotated or removed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from ale_endpoint.relays.request_log import (
    MOST_LINE,
    POLL_S,
    SESSION_END,
    Log,
    Record,
    append,
    digest,
    encode,
    lock,
    open_regular_file,
    parse,
)


class RequestError(Exception):
    """A request is answered with an error: an HTTP status, a code, and a sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": code}}


class Requests:
    """The requests of one log. Every attribute is guarded by `changed`."""

    def __init__(self, path: str) -> None:
        self.path, self.log, self.changed = path, Log(path), threading.Condition()
        self.last, self.ended = 0, False
        self.asked: dict[int, tuple[str, int]] = {}
        """Each request's digest and timestamp."""
        self.answered: set[int] = set()
        self.answers: dict[int, Record] = {}
        """Answers that no client has taken yet."""
        self.left: dict[str, list[int]] = {}
        """Requests whose client has gone, by digest."""
        append(path, b"")
        with self.changed:
            self.take()
        for index in self.asked:
            if index not in self.answered:
                self.left.setdefault(self.asked[index][0], []).append(index)

    def take(self) -> None:
        """Read what has come; with `changed` held."""
        while True:
            lines = self.log.read()
            for line in lines:
                record = parse(line)
                if record is None:
                    print_notice(f"A line that is no whole record is skipped: {line[:60]!r}.")
                elif record.kind == "end":
                    self.ended = True
                elif record.kind == "request":
                    self.last = max(self.last, record.number)
                    self.asked[record.number] = (digest(record.body), record.meta.get("timestamp", 0))
                elif record.number not in self.asked:
                    print_notice(f"An answer to request {record.number}, which was not asked, is ignored.")
                elif record.number not in self.answered:
                    self.answered.add(record.number)
                    self.answers[record.number] = record
            for note in self.log.notes:
                print_notice(note)
            self.log.notes = []
            if not lines:
                break
        self.changed.notify_all()

    def begin(self, body: Any) -> int:
        """Write a request; its index. One that was left and is asked again keeps its own. Raises `RequestError`,
        `OSError`."""
        key = digest(body)
        with self.changed:
            fd = open_regular_file(self.path + ".index", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                lock(fd)
                self.take()
                if self.ended:
                    raise RequestError(410, "session_ended", "The session has ended.")
                if self.left.get(key):
                    index = self.left[key].pop(0)
                    if index not in self.answered:
                        # Once more, since it may have gone with a file that was rotated; the same line counts once.
                        append(self.path, encode("request", body, index, self.asked[index][1]))
                    return index
                given = os.pread(fd, 20, 0).strip()
                index = max(self.last, int(given) if given.isdigit() else 0) + 1
                at = int(time.time() * 1000)
                line = encode("request", body, index, at)
                if len(line) > MOST_LINE:
                    raise RequestError(
                        413, "request_too_large", f"The request takes more than {MOST_LINE} bytes in the log."
                    )
                append(self.path, line)
                os.pwrite(fd, b"%-20d" % index, 0)
                self.last, self.asked[index] = index, (key, at)
                return index
            finally:
                os.close(fd)

    def wait(self, index: int, seconds: float) -> Record | None:
        """The answer, if it comes in time. Raises `RequestError` where the session has ended."""
        with self.changed:
            if index not in self.answers and not self.ended:
                self.changed.wait(seconds)
            if index in self.answers:
                return self.answers.pop(index)
            if self.ended:
                raise RequestError(410, "session_ended", "The session has ended.")
            return None

    def leave(self, index: int, answer: Record | None = None) -> None:
        """Note that the client of a request has gone. An answer that came just then is kept for one that asks again."""
        with self.changed:
            if answer is not None:
                self.answers[index] = answer
            self.left.setdefault(self.asked[index][0], []).append(index)

    def follow(self) -> None:
        """Read the log as it grows, without end."""
        while True:
            with self.changed:
                try:
                    if not os.path.lexists(self.path):
                        append(self.path, b"")  # it was rotated, and the other side needs a file to write to
                    self.take()
                except OSError as error:
                    print_notice(f"The log cannot be read: {error}.")
            time.sleep(POLL_S)

    def watch(self, pid: int, started: str) -> None:
        """Write the end of the session when a process has gone."""
        while start_of(pid) == started != "":
            time.sleep(POLL_S * 5)
        with self.changed:
            self.take()
            if not self.ended:
                append(self.path, SESSION_END + b"\n")


def start_of(pid: int) -> str:
    """Return the start time of a process in the kernel's ticks; empty if there is no such process, or only a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def print_notice(sentence: str) -> None:
    """One line for a person."""
    print(f"files: {sentence}", file=sys.stderr, flush=True)
