"""Trees under way, in or out. Used by the resident, inside the sandbox.

A transfer is one call of many frames: each that the host sends is a piece of work and has one answer, so that other calls are
served in between and neither side ever holds more than a piece. A cancelled call is dropped.
It works with the rights of its user, except for snapshots (`whole`): these are read with the resident's own rights, and put
back as whoever owns an entry.
"""

from __future__ import annotations

import errno
import os

from ale_resident.inside.packing import Reader
from ale_resident.inside.standstill import Standstill
from ale_resident.inside.unpacking import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ale_resident.inside.resident import Resident
    from ale_resident.inside.rights import Rights

STEPS = 500
"""What one frame does of a tree's end."""


class Incoming(Writer):
    """A tree that comes in; `user` is `whole` for a snapshot's, which belongs to several."""

    def __init__(self, parent: int, base: bytes, rights: Rights, user: bytes) -> None:
        super().__init__(parent, base, merge=True, whole=user == b"whole")
        self.rights, self.user = rights, user
        if user == b"tests":
            self.root_mask = 0o700  # their folders are closed to others, as those that an upload makes
        self.ends = self.finish()

    def become(self, owner: int) -> None:
        if self.whole:
            self.rights.take_as(owner)

    def step(self, what: bytes, fields: list[bytes]) -> tuple[bool, list[bytes]]:
        """Do what a frame says; whether that was all, and the answer."""
        if not self.whole:
            self.rights.take(self.user)
        if what == b"piece":
            self.take(fields)
            return False, []
        return any(next(self.ends, self) is self for _ in range(STEPS)), []


class Outgoing(Reader):
    """A tree that goes out."""

    def __init__(self, root: int, rights: Rights, whole: bool) -> None:
        super().__init__(root, whole)
        self.rights = rights

    def step(self, what: bytes, fields: list[bytes]) -> tuple[bool, list[bytes]]:
        """The next piece, and whether it is the last."""
        if not self.whole:
            self.rights.take(b"agent")
        records, last = self.piece()
        return last, records


class Transfers:
    """Serves the frames of all transfers."""

    def __init__(self, resident: Resident) -> None:
        self.resident = resident
        self.under_way: dict[int, Incoming | Outgoing | Standstill] = {}

    def serve(self, call: int, fields: list[bytes]) -> tuple[bool, list[bytes]]:
        """One frame: whether its answer is the call's last, and the answer. `OSError` ends the call."""
        transfer = self.under_way.get(call)
        if transfer is None:
            self.under_way[call] = self.begin(fields)
            return False, []
        last = True
        try:
            if isinstance(transfer, Standstill):
                return last, []
            last, answer = transfer.step(fields[0], fields[1:])
            return last, answer
        finally:
            self.resident.rights.give_back()
            if last:
                self.drop(call)

    def drop(self, call: int) -> bool:
        """A transfer is over, or nobody wants it any more; whether there was one."""
        transfer = self.under_way.pop(call, None)
        if transfer is not None:
            transfer.close()
        return transfer is not None

    def begin(self, fields: list[bytes]) -> Incoming | Outgoing | Standstill:
        """What the first frame asks for."""
        if fields[0] == b"stand":
            return Standstill(self.resident.commands.values())
        if fields[0] not in (b"in", b"out"):  # of a transfer that is over: this was asked for before that was known
            raise OSError(errno.EINVAL, "there is no such transfer")
        what, path, user = fields
        if not path or b"\0" in path:
            raise OSError(errno.EINVAL, "a tree has no such path")
        path = os.path.join(os.fsencode(self.resident.workdir), path)
        rights = self.resident.rights
        if user != b"whole":
            rights.take(user)
        try:
            if what == b"in":
                return self.incoming(os.path.normpath(path), user)
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW if user == b"whole" else os.O_RDONLY | os.O_NONBLOCK
            return Outgoing(os.open(path, flags | os.O_CLOEXEC), rights, user == b"whole")
        finally:
            rights.give_back()

    def incoming(self, path: bytes, user: bytes) -> Incoming:
        """A place for a tree; the folders above it are made."""
        above, base = os.path.split(path)
        if not base:
            raise OSError(errno.EINVAL, "a tree cannot take the place of the whole file system")
        os.umask(0o077 if user == b"tests" else 0o022)
        os.makedirs(above, exist_ok=True)
        parent = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return Incoming(parent, base, self.resident.rights, user)
