"""Transfers of trees in and out of the sandbox. Runs in the resident, inside the sandbox.

A transfer is one call of many frames. Each frame of the host is a piece of work with one answer, so other calls are
served in between and neither side ever holds more than a piece. A cancelled call is dropped. A transfer has the rights
of its user, except for snapshots (`whole`): these are read with the resident's rights and restored as each entry's
owner."""

from __future__ import annotations

import errno
import os

from ale_sandbox.resident.trees.freeze import Freeze
from ale_sandbox.resident.trees.tree_reader import Reader
from ale_sandbox.resident.trees.tree_writer import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ale_sandbox.resident.interface import Resident
    from ale_sandbox.resident.privileges import Rights

STEPS = 500
"""How many steps of finishing a tree one frame does."""


class Incoming(Writer):
    """A tree that is uploaded; `user` is `whole` for a snapshot, whose entries have several owners."""

    def __init__(self, parent: int, base: bytes, rights: Rights, user: bytes) -> None:
        super().__init__(parent, base, merge=True, whole=user == b"whole")
        self.rights, self.user = rights, user
        if user == b"tests":
            self.root_mask = 0o700  # the tests' folders are closed to others, as in uploads of files
        self.ends = self.finish()

    def become(self, owner: int) -> None:
        if self.whole:
            self.rights.take_as(owner)

    def step(self, what: bytes, fields: list[bytes]) -> tuple[bool, list[bytes]]:
        """Do what a frame says; return whether the transfer is complete, and the answer."""
        if not self.whole:
            self.rights.take(self.user)
        if what == b"piece":
            self.take(fields)
            return False, []
        return any(next(self.ends, self) is self for _ in range(STEPS)), []


class Outgoing(Reader):
    """A tree that is downloaded."""

    def __init__(self, root: int, rights: Rights, whole: bool) -> None:
        super().__init__(root, whole)
        self.rights = rights

    def step(self, what: bytes, fields: list[bytes]) -> tuple[bool, list[bytes]]:
        """Return whether the next piece is the last, and the piece."""
        if not self.whole:
            self.rights.take(b"agent")
        records, last = self.piece()
        return last, records


class Transfers:
    """Serves the frames of all transfers."""

    def __init__(self, resident: Resident) -> None:
        self.resident = resident
        self.under_way: dict[int, Incoming | Outgoing | Freeze] = {}

    def serve(self, call: int, fields: list[bytes]) -> tuple[bool, list[bytes]]:
        """Serve one frame; return whether its answer is the call's last, and the answer. `OSError` ends the call."""
        transfer = self.under_way.get(call)
        if transfer is None:
            self.under_way[call] = self.begin(fields)
            return False, []
        last = True
        try:
            if isinstance(transfer, Freeze):
                return last, []
            last, answer = transfer.step(fields[0], fields[1:])
            return last, answer
        finally:
            self.resident.rights.give_back()
            if last:
                self.drop(call)

    def drop(self, call: int) -> bool:
        """Drop a finished or cancelled transfer; return whether there was one."""
        transfer = self.under_way.pop(call, None)
        if transfer is not None:
            transfer.close()
        return transfer is not None

    def begin(self, fields: list[bytes]) -> Incoming | Outgoing | Freeze:
        """Begin the transfer that the first frame asks for."""
        if fields[0] == b"stand":
            return Freeze(self.resident.commands.values())
        if fields[0] not in (b"in", b"out"):  # a frame of a finished transfer, sent before its end was known
            raise OSError(errno.EINVAL, "there is no such transfer")
        what, path, user = fields
        if not path or b"\0" in path:
            raise OSError(errno.EINVAL, "a tree cannot have this path")
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
        """Prepare for an uploaded tree; make the folders above it."""
        above, base = os.path.split(path)
        if not base:
            raise OSError(errno.EINVAL, "a tree cannot take the place of the whole file system")
        os.umask(0o077 if user == b"tests" else 0o022)
        os.makedirs(above, exist_ok=True)
        parent = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return Incoming(parent, base, self.resident.rights, user)
