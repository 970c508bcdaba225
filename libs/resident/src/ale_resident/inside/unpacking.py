"""Writes a tree from its records (`packing.py`), wherever they come from: nothing is written outside its root.

1. The root is a name in an open folder. Every entry is made by a system call relative to the open folder that it stands in,
   which is reached from there component by component without following a link.
2. Links are made at the end, when all else is written, and then folders get their modes and times, the deepest first:
   until then no link exists that a record could go through, and no folder is closed to its writer.
3. What a record may say is checked: names (`split_name`), kinds, order, sizes, how much there is of it all.

Used on both sides of the channel; inside, it is imported when the first tree is asked for.
"""

from __future__ import annotations

import errno
import os

from ale_resident.inside.packing import (
    DATA,
    END,
    FILE,
    FOLDER,
    LINK,
    PIPE,
    REFUSED,
    Refused,
    open_below,
    quoted,
    split_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    T = TypeVar("T")

MAX_ENTRIES, MAX_REMEMBERED_BYTES = 1 << 20, 1 << 26
"""How many entries a tree may have, and how long the names of its folders and links may be together."""
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_PIPE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
EXISTING = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Entry:
    """What a record says of an entry, taken apart. `Refused` where it makes no sense."""

    def __init__(self, kind: bytes, name: bytes, facts: bytes, target: bytes) -> None:
        numbers = facts.split(b" ")
        if len(numbers) != 4 or not all(n.removeprefix(b"-").isdigit() and len(n) < 20 for n in numbers):
            raise Refused(f"{quoted(name[:80])} comes with facts that make no sense")
        self.mode, self.time_ns, self.size, self.owner = map(int, numbers)
        sane = 0 <= self.mode <= 0o7777 and self.size >= 0 and 0 <= self.owner < 1 << 16
        if not sane or not -(1 << 62) < self.time_ns < 1 << 62:
            raise Refused(f"{quoted(name[:80])} comes with facts that make no sense")
        self.kind, self.name, self.target = kind, name, target
        parts = split_name(name)
        self.above, self.base = b"/".join(parts[:-1]), parts[-1] if parts else b""


class Writer:
    """Writes one tree, as `base` in the open folder `parent`, which becomes the writer's own.

    Without `merge` the root must be new. With it, folders that are there stay as they are and take in what comes; files and
    links are replaced. `whole` is as for a `Reader`. `max_bytes` is what the files may hold together.
    """

    root_mask = 0o7777
    """What a root that is a folder keeps of its mode."""

    def __init__(
        self, parent: int, base: bytes, *, merge: bool = False, whole: bool = False, max_bytes: int | None = None
    ) -> None:
        self.parent, self.base = parent, base
        self.merge, self.whole, self.max_bytes = merge, whole, max_bytes
        self.bytes = self.entries = self.remembered = 0
        self.ended = False
        self.idle = 0
        """Pieces without a record: a folder may be long in which nothing belongs to the tree."""
        self.folders: list[Entry] = []
        self.links: dict[bytes, Entry] = {}
        self.folder: tuple[bytes, int] | None = None
        """The folder that the last entry stands in, open."""
        self.file: tuple[Entry, int] | None = None
        """The file whose content comes, open."""
        self.at = 0

    def become(self, owner: int) -> None:
        """What a side does before it makes something that `owner` is to have."""

    def hand_over(self, folder: int, base: bytes, owner: int) -> None:
        """What a side does after that."""

    # --- records

    def take(self, fields: list[bytes]) -> bool:
        """Write what a piece says; whether the tree is complete. Raises `OSError` that names the entry."""
        if len(fields) % 4:
            raise Refused("a piece of the tree is cut short")
        self.idle += not fields
        if self.idle > MAX_ENTRIES:
            raise Refused("the tree has no end")
        for at in range(0, len(fields), 4):
            kind, name, facts, target = fields[at : at + 4]
            if self.ended:
                raise Refused("something comes after the tree's end")
            if kind == DATA:
                self.write(name, facts)
                continue
            self.finish_file()
            if kind != END:
                self.make(Entry(kind, name, facts, target))
            elif self.entries:
                self.ended = True
            else:
                raise Refused("the tree is empty")
        return self.ended

    def make(self, entry: Entry) -> None:
        """Make an entry, or keep it in mind for the end."""
        self.entries += 1
        if self.entries > MAX_ENTRIES:
            raise Refused(f"the tree holds more than {MAX_ENTRIES} entries")
        if (self.entries == 1) == bool(entry.name):
            raise Refused(f"{quoted(entry.name)} comes where the root of the tree belongs, or is a second one")
        if entry.kind == FOLDER:
            self.remember(entry)
            self.named(entry, self.make_folder)
        elif entry.kind == FILE:
            self.count(0 if self.whole else entry.size)
            self.named(entry, self.make_file)
        elif entry.kind == LINK and entry.name and entry.target and b"\0" not in entry.target:
            self.remember(entry)
            if self.links.setdefault(entry.name, entry) is not entry:
                raise Refused(f"{quoted(entry.name)} comes twice")
        elif entry.kind == PIPE and entry.name and self.whole:
            self.named(entry, self.make_pipe)
        elif entry.kind == REFUSED:
            what = entry.target[:40].decode("ascii", "replace")
            raise Refused(f"{quoted(entry.name)} is a {what!r}, which a tree must not hold")
        else:
            raise Refused(f"{quoted(entry.name)} is of a kind that there is not")

    def write(self, offset: bytes, data: bytes) -> None:
        """Write content into the file that is open."""
        if self.file is None:
            raise Refused("content comes without a file")
        entry, fd = self.file
        at = int(offset) if offset.isdigit() and len(offset) < 20 else -1
        if at < self.at or at + len(data) > entry.size:
            raise Refused(f"{quoted(entry.name)} holds more than was said")
        if self.whole:
            self.count(len(data))
        self.at = at + len(data)
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(fd, view, at)
                view, at = view[written:], at + written
        except OSError as error:
            raise unwritable(entry, error) from error

    def remember(self, entry: Entry) -> None:
        """Take note of what comes back at the end."""
        self.remembered += len(entry.name) + len(entry.target)
        if self.remembered > MAX_REMEMBERED_BYTES:
            raise Refused("the tree holds too many folders and links")

    def count(self, size: int) -> None:
        """Take note of so many bytes."""
        self.bytes += size
        if self.max_bytes is not None and self.bytes > self.max_bytes:
            raise Refused(f"the tree is larger than {self.max_bytes} bytes")

    # --- the file system

    def named(self, entry: Entry, make: Callable[[Entry, int, bytes], None]) -> None:
        """Make an entry in its folder, as its owner; an error names it."""
        try:
            self.become(entry.owner)
            if entry.name:
                make(entry, self.open_folder(entry.above), entry.base)
            else:
                make(entry, self.parent, self.base)
        except OSError as error:
            raise unwritable(entry, error) from error

    def open_folder(self, name: bytes) -> int:
        """A folder of the tree, which stays open until another one is asked for."""
        if self.folder is None or self.folder[0] != name:
            self.close_folder()
            self.folder = (name, open_below(self.parent, self.base + b"/" + name if name else self.base, os.O_PATH))
        return self.folder[1]

    def anew(self, make: Callable[[], T], folder: int, base: bytes) -> T:
        """Make something, in the place of what is there where that is to be replaced."""
        try:
            return make()
        except FileExistsError:
            if not self.merge:
                raise
        os.unlink(base, dir_fd=folder)
        return make()

    def make_folder(self, entry: Entry, folder: int, base: bytes) -> None:
        """Make a folder, or find it."""
        try:
            os.mkdir(base, 0o700, dir_fd=folder)
        except FileExistsError:
            if not self.merge:
                raise
            there = os.open(base, EXISTING, dir_fd=folder)
            try:
                if (
                    self.whole and not os.fstatvfs(there).f_flag & os.ST_RDONLY
                ):  # the host's Python may be mounted in /tmp
                    self.folders.append(entry)
            finally:
                os.close(there)
            return
        self.hand_over(folder, base, entry.owner)
        self.folders.append(entry)

    def make_file(self, entry: Entry, folder: int, base: bytes) -> None:
        """Make a file, to be filled."""
        fd = self.anew(lambda: os.open(base, NEW_FILE, 0o600, dir_fd=folder), folder, base)
        self.file, self.at = (entry, fd), 0
        self.hand_over(folder, base, entry.owner)

    def make_pipe(self, entry: Entry, folder: int, base: bytes) -> None:
        """Make a pipe."""
        self.anew(lambda: os.mkfifo(base, 0o600, dir_fd=folder), folder, base)
        self.hand_over(folder, base, entry.owner)
        fd = os.open(base, OPEN_PIPE, dir_fd=folder)
        try:
            self.settle(entry, fd)
        finally:
            os.close(fd)

    def make_link(self, entry: Entry, folder: int, base: bytes) -> None:
        """Make a link."""
        self.anew(lambda: os.symlink(entry.target, base, dir_fd=folder), folder, base)
        self.hand_over(folder, base, entry.owner)
        os.utime(base, ns=(entry.time_ns, entry.time_ns), dir_fd=folder, follow_symlinks=False)

    def finish_file(self) -> None:
        """The open file has all its content."""
        if self.file is None:
            return
        (entry, fd), self.file = self.file, None
        try:
            if self.at != entry.size:
                os.ftruncate(fd, entry.size)
            self.become(entry.owner)
            self.settle(entry, fd)
        except OSError as error:
            raise unwritable(entry, error) from error
        finally:
            os.close(fd)

    def settle(self, entry: Entry, fd: int) -> None:
        """Mode and time of what is open."""
        os.fchmod(fd, entry.mode & (0o7777 if self.whole else 0o777))
        os.utime(fd, ns=(entry.time_ns, entry.time_ns))

    def settle_folder(self, entry: Entry, folder: int, base: bytes) -> None:
        """Mode and time of a folder that nothing is written into any more."""
        fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if not entry.name:
                entry.mode &= self.root_mask
            self.settle(entry, fd)
        finally:
            os.close(fd)

    # --- the end

    def finish(self) -> Iterator[None]:
        """Once the tree is complete: make the links, then settle the folders. A step an item."""
        if not self.ended:
            raise Refused("the tree is cut short")
        for entry in self.links.values():
            self.named(entry, self.make_link)
            yield
        for entry in reversed(self.folders):
            self.named(entry, self.settle_folder)
            yield

    def close_folder(self) -> None:
        """Let the open folder go."""
        if self.folder is not None:
            os.close(self.folder[1])
            self.folder = None

    def close(self) -> None:
        """Let everything go; what was written stays. Idempotent."""
        self.close_folder()
        if self.file is not None:
            os.close(self.file[1])
            self.file = None
        if self.parent >= 0:
            os.close(self.parent)
            self.parent = -1


def unwritable(entry: Entry, error: OSError) -> OSError:
    """The error with the entry's name."""
    if isinstance(error, Refused):
        return error
    why = "it comes twice" if error.errno == errno.EEXIST else error.strerror
    return OSError(error.errno, f"{quoted(entry.name)} cannot be written: {why}")
