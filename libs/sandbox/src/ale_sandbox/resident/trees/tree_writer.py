"""Writes a tree from its records (`tree_reader.py`). The records are not trusted: nothing is written outside the root.

1. The root is a name in an open folder. Every entry is made by a system call relative to its open parent folder, which
   is opened from the root component by component without following a link.
2. Links are made last, and then folders get their modes and times, the deepest first: until then no record can go
   through a link, and no folder is closed to its writer.
3. Every record is checked: names (`split_name`), kinds, order, sizes and total amounts.

Both sides of the channel use this module; the resident imports it at the first request for a tree.
"""

from __future__ import annotations

import errno
import os

from ale_sandbox.resident.trees.tree_reader import (
    DATA,
    END,
    FILE,
    FOLDER,
    LINK,
    PIPE,
    REFUSED,
    InvalidTree,
    open_below,
    quote,
    split_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    T = TypeVar("T")

MAX_ENTRIES, MAX_REMEMBERED_BYTES = 1 << 20, 1 << 26
"""The most entries of a tree, and the most bytes of the names of its folders and links together."""
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_PIPE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
EXISTING = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Entry:
    """A parsed record of an entry. Raises `InvalidTree` if the record is invalid."""

    def __init__(self, kind: bytes, name: bytes, facts: bytes, target: bytes) -> None:
        numbers = facts.split(b" ")
        if len(numbers) != 4 or not all(n.removeprefix(b"-").isdigit() and len(n) < 20 for n in numbers):
            raise InvalidTree(f"{quote(name[:80])} comes with facts that make no sense")
        self.mode, self.time_ns, self.size, self.owner = map(int, numbers)
        sane = 0 <= self.mode <= 0o7777 and self.size >= 0 and 0 <= self.owner < 1 << 16
        if not sane or not -(1 << 62) < self.time_ns < 1 << 62:
            raise InvalidTree(f"{quote(name[:80])} comes with facts that make no sense")
        self.kind, self.name, self.target = kind, name, target
        parts = split_name(name)
        self.above, self.base = b"/".join(parts[:-1]), parts[-1] if parts else b""


class Writer:
    """Writes one tree, as `base` in the open folder `parent`, which the writer closes.

    Without `merge` the root must be new. With it, the tree is merged into existing folders, which stay as they are, and
    files and links are replaced. `whole` is as for a `Reader`. `max_bytes` limits the size of all files together."""

    root_mask = 0o7777
    """The bits of its mode that a root folder keeps."""

    def __init__(
        self, parent: int, base: bytes, *, merge: bool = False, whole: bool = False, max_bytes: int | None = None
    ) -> None:
        self.parent, self.base = parent, base
        self.merge, self.whole, self.max_bytes = merge, whole, max_bytes
        self.bytes = self.entries = self.remembered = 0
        self.ended = False
        self.idle = 0
        """Pieces without a record, which come from long folders whose entries are all left out."""
        self.folders: list[Entry] = []
        self.links: dict[bytes, Entry] = {}
        self.folder: tuple[bytes, int] | None = None
        """The open folder of the last entry."""
        self.file: tuple[Entry, int] | None = None
        """The open file whose content is being written."""
        self.at = 0

    def become(self, owner: int) -> None:
        """Called before an entry of `owner` is made; the resident then changes its user."""

    def hand_over(self, folder: int, base: bytes, owner: int) -> None:
        """Called after an entry of `owner` was made."""

    # --- records

    def take(self, fields: list[bytes]) -> bool:
        """Write a piece; return whether the tree is complete. Raises `OSError` that names the entry."""
        if len(fields) % 4:
            raise InvalidTree("a piece of the tree is cut short")
        self.idle += not fields
        if self.idle > MAX_ENTRIES:
            raise InvalidTree("the tree has no end")
        for at in range(0, len(fields), 4):
            kind, name, facts, target = fields[at : at + 4]
            if self.ended:
                raise InvalidTree("something comes after the tree's end")
            if kind == DATA:
                self.write(name, facts)
                continue
            self.finish_file()
            if kind != END:
                self.make(Entry(kind, name, facts, target))
            elif self.entries:
                self.ended = True
            else:
                raise InvalidTree("the tree is empty")
        return self.ended

    def make(self, entry: Entry) -> None:
        """Make an entry, or remember it for the end."""
        self.entries += 1
        if self.entries > MAX_ENTRIES:
            raise InvalidTree(f"the tree holds more than {MAX_ENTRIES} entries")
        if (self.entries == 1) == bool(entry.name):
            raise InvalidTree(f"{quote(entry.name)} comes where the root of the tree belongs, or is a second one")
        if entry.kind == FOLDER:
            self.remember(entry)
            self.make_as_owner(entry, self.make_folder)
        elif entry.kind == FILE:
            self.count(0 if self.whole else entry.size)
            self.make_as_owner(entry, self.make_file)
        elif entry.kind == LINK and entry.name and entry.target and b"\0" not in entry.target:
            self.remember(entry)
            if self.links.setdefault(entry.name, entry) is not entry:
                raise InvalidTree(f"{quote(entry.name)} comes twice")
        elif entry.kind == PIPE and entry.name and self.whole:
            self.make_as_owner(entry, self.make_pipe)
        elif entry.kind == REFUSED:
            what = entry.target[:40].decode("ascii", "replace")
            raise InvalidTree(f"{quote(entry.name)} is a {what!r}, which a tree must not hold")
        else:
            raise InvalidTree(f"{quote(entry.name)} is of an unknown kind")

    def write(self, offset: bytes, data: bytes) -> None:
        """Write content into the open file."""
        if self.file is None:
            raise InvalidTree("content comes without a file")
        entry, fd = self.file
        at = int(offset) if offset.isdigit() and len(offset) < 20 else -1
        if at < self.at or at + len(data) > entry.size:
            raise InvalidTree(f"{quote(entry.name)} holds more than its record says")
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
        """Remember an entry that must be finished at the end."""
        self.remembered += len(entry.name) + len(entry.target)
        if self.remembered > MAX_REMEMBERED_BYTES:
            raise InvalidTree("the tree holds too many folders and links")

    def count(self, size: int) -> None:
        """Count bytes against the limits."""
        self.bytes += size
        if self.max_bytes is not None and self.bytes > self.max_bytes:
            raise InvalidTree(f"the tree is larger than {self.max_bytes} bytes")

    # --- the file system

    def make_as_owner(self, entry: Entry, make: Callable[[Entry, int, bytes], None]) -> None:
        """Make an entry in its folder, as its owner; errors name the entry."""
        try:
            self.become(entry.owner)
            if entry.name:
                make(entry, self.open_folder(entry.above), entry.base)
            else:
                make(entry, self.parent, self.base)
        except OSError as error:
            raise unwritable(entry, error) from error

    def open_folder(self, name: bytes) -> int:
        """Open a folder of the tree; it stays open until another one is needed."""
        if self.folder is None or self.folder[0] != name:
            self.close_folder()
            self.folder = (name, open_below(self.parent, self.base + b"/" + name if name else self.base, os.O_PATH))
        return self.folder[1]

    def make_or_replace(self, make: Callable[[], T], folder: int, base: bytes) -> T:
        """Make an entry; with `merge`, replace an existing one."""
        try:
            return make()
        except FileExistsError:
            if not self.merge:
                raise
        os.unlink(base, dir_fd=folder)
        return make()

    def make_folder(self, entry: Entry, folder: int, base: bytes) -> None:
        """Make a folder, or use the existing one."""
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
        """Make an empty file and open it."""
        fd = self.make_or_replace(lambda: os.open(base, NEW_FILE, 0o600, dir_fd=folder), folder, base)
        self.file, self.at = (entry, fd), 0
        self.hand_over(folder, base, entry.owner)

    def make_pipe(self, entry: Entry, folder: int, base: bytes) -> None:
        """Make a pipe."""
        self.make_or_replace(lambda: os.mkfifo(base, 0o600, dir_fd=folder), folder, base)
        self.hand_over(folder, base, entry.owner)
        fd = os.open(base, OPEN_PIPE, dir_fd=folder)
        try:
            self.set_mode_and_time(entry, fd)
        finally:
            os.close(fd)

    def make_link(self, entry: Entry, folder: int, base: bytes) -> None:
        """Make a link."""
        self.make_or_replace(lambda: os.symlink(entry.target, base, dir_fd=folder), folder, base)
        self.hand_over(folder, base, entry.owner)
        os.utime(base, ns=(entry.time_ns, entry.time_ns), dir_fd=folder, follow_symlinks=False)

    def finish_file(self) -> None:
        """Finish the open file, which has all its content."""
        if self.file is None:
            return
        (entry, fd), self.file = self.file, None
        try:
            if self.at != entry.size:
                os.ftruncate(fd, entry.size)
            self.become(entry.owner)
            self.set_mode_and_time(entry, fd)
        except OSError as error:
            raise unwritable(entry, error) from error
        finally:
            os.close(fd)

    def set_mode_and_time(self, entry: Entry, fd: int) -> None:
        """Set mode and time of an open entry."""
        os.fchmod(fd, entry.mode & (0o7777 if self.whole else 0o777))
        os.utime(fd, ns=(entry.time_ns, entry.time_ns))

    def set_folder_mode_and_time(self, entry: Entry, folder: int, base: bytes) -> None:
        """Set mode and time of a folder after everything in it is written."""
        fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if not entry.name:
                entry.mode &= self.root_mask
            self.set_mode_and_time(entry, fd)
        finally:
            os.close(fd)

    # --- the end

    def finish(self) -> Iterator[None]:
        """After the tree is complete, make the links, then set the folders' modes and times, one step each."""
        if not self.ended:
            raise InvalidTree("the tree is cut short")
        for entry in self.links.values():
            self.make_as_owner(entry, self.make_link)
            yield
        for entry in reversed(self.folders):
            self.make_as_owner(entry, self.set_folder_mode_and_time)
            yield

    def close_folder(self) -> None:
        """Close the open folder."""
        if self.folder is not None:
            os.close(self.folder[1])
            self.folder = None

    def close(self) -> None:
        """Close everything; what was written stays. Idempotent."""
        self.close_folder()
        if self.file is not None:
            os.close(self.file[1])
            self.file = None
        if self.parent >= 0:
            os.close(self.parent)
            self.parent = -1


def unwritable(entry: Entry, error: OSError) -> OSError:
    """Add the entry's name to an error."""
    if isinstance(error, InvalidTree):
        return error
    why = "it comes twice" if error.errno == errno.EEXIST else error.strerror
    return OSError(error.errno, f"{quote(entry.name)} cannot be written: {why}")
