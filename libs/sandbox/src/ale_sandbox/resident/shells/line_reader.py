"""Reads lines from a pipe that untrusted processes may write to. Runs in the resident, inside the sandbox."""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ale_sandbox.resident.interface import Resident

AT_ONCE = 4096
"""Bytes read at a time. A line longer than twice as much is cut, and is then invalid."""


class LineReader:
    """Passes the words of each line to `take`, as they arrive. If that fails, it calls `give_up`."""

    def __init__(
        self, resident: Resident, fd: int, take: Callable[[list[bytes]], None], give_up: Callable[[], None]
    ) -> None:
        self.resident, self.fd, self.take, self.give_up = resident, fd, take, give_up
        self.rest = b""
        self.open = True
        os.set_blocking(fd, False)
        resident.watched[fd] = self.read
        resident.poll.register(fd, select.EPOLLIN)

    def read(self) -> None:
        """Read what has arrived."""
        if not self.open:
            return
        try:
            data = os.read(self.fd, AT_ONCE)
            if not data:
                self.look_away()
            *lines, rest = (self.rest + data).split(b"\n")
            self.rest = rest[:AT_ONCE]
            for line in lines:
                if self.open:
                    self.take(line.split())
        except BlockingIOError:
            return
        except (OSError, ValueError, IndexError):
            self.give_up()

    def look_away(self) -> None:
        """Stop watching the pipe."""
        if self.resident.watched.pop(self.fd, None) is not None:
            self.resident.poll.unregister(self.fd)

    def close(self) -> None:
        """Close the pipe."""
        self.open = False
        self.look_away()
        os.close(self.fd)
