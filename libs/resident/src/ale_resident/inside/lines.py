"""Lines that come through a pipe, from whoever may write to it. Used by the resident, inside the sandbox."""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ale_resident.inside.resident import Resident

AT_ONCE = 4096
"""So much is read at a time, and of a line at most twice as much is kept: a longer one is cut, and makes no sense then."""


class Lines:
    """Hands the words of each line to `take`, as they come. Where that fails, `give_up` is called."""

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
        """Take what has come by now."""
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
        """There is nothing more to be heard."""
        if self.resident.watched.pop(self.fd, None) is not None:
            self.resident.poll.unregister(self.fd)

    def close(self) -> None:
        """Let go of the pipe."""
        self.open = False
        self.look_away()
        os.close(self.fd)
