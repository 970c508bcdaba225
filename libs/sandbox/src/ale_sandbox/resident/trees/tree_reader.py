"""Packs a tree of files into records, for the channel and for snapshots; `tree_writer.py` writes them again.

1. A record has four fields. An entry has kind, name, facts, and a link's target; content has `DATA`, offset, bytes; the
   last record is `END`. Names are bytes relative to the root, whose own name is empty; a folder comes before its
   content.
2. A tree may change while it is read. What vanishes is left out, a file is read up to the size that it had when it was
   opened, and no link is followed, not even one swapped in. Of a sparse file only the data is read.
3. `whole` is for snapshots: they keep owners, all mode bits, links wherever they lead, and pipes, but no sockets, which
   are useless without their process. Other trees hold only folders, files and links; anything else is reported
   (`REFUSED`).

Both sides of the channel use this module; the resident imports it at the first request for a tree.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False  # importing it, or `collections.abc`, would cost 3 ms inside
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

FOLDER, FILE, LINK, PIPE, DATA, REFUSED, END = b"d", b"f", b"l", b"p", b"+", b"!", b"."
PIECE_BYTES, PIECE_RECORDS = 1 << 20, 512
"""The limits of a piece, which is what one request carries."""
MAX_NAME_BYTES, MAX_DEPTH = 3072, 200
"""Limits of a path below the root. Longer ones are refused, because usual tools cannot remove them."""
FOLDER_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
"""The errors of opening a name that is gone or was replaced."""


class InvalidTree(OSError):
    """A tree holds a forbidden entry, or a record is invalid."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EINVAL, reason)


def quote(name: bytes) -> str:
    """Quote a name of any bytes for a message."""
    return repr(name.decode("utf-8", "backslashreplace"))


def split_name(name: bytes) -> list[bytes]:
    """Split a record's name. Raises `InvalidTree` if it could lead out of the root or is too long."""
    if not name:
        return []
    parts = name.split(b"/")
    if b"" in parts or b"." in parts or b".." in parts or b"\0" in name:
        raise InvalidTree(f"{quote(name)} is no path within a tree")
    if len(name) > MAX_NAME_BYTES or len(parts) > MAX_DEPTH:
        raise InvalidTree(f"{quote(name[:80])}... is too long or lies too deep (over {MAX_DEPTH} folders)")
    return parts


def unreadable(name: bytes, error: OSError) -> OSError:
    """Add the entry's name to an error."""
    if isinstance(error, InvalidTree):
        return error
    return OSError(error.errno, f"{quote(name)} cannot be read: {error.strerror}")


def kind_of(mode: int) -> bytes:
    """Name the kind of an entry that a tree must not hold."""
    kinds = {stat.S_IFCHR: b"device", stat.S_IFBLK: b"device", stat.S_IFSOCK: b"socket", stat.S_IFIFO: b"pipe"}
    return kinds.get(stat.S_IFMT(mode), b"special file")


def open_below(root: int, name: bytes, access: int) -> int:
    """Open the folder `name` below `root` without following links."""
    parts = split_name(name) or [b"."]
    at = root
    for number, part in enumerate(parts):
        try:
            below = os.open(part, (access if number == len(parts) - 1 else os.O_PATH) | FOLDER_FLAGS, dir_fd=at)
        finally:
            if at != root:
                os.close(at)
        at = below
    return at


def facts(found: os.stat_result) -> bytes:
    """Pack mode, time, size and owner of an entry."""
    return b"%d %d %d %d" % (stat.S_IMODE(found.st_mode), found.st_mtime_ns, found.st_size, found.st_uid)


def content(fd: int, size: int) -> Iterator[list[bytes]]:
    """Yield the data of an open file up to `size`, without its holes."""
    at = 0
    while at < size:
        end = min(size, at + PIECE_BYTES)
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
            end = min(size, at + PIECE_BYTES, os.lseek(fd, at, os.SEEK_HOLE))
        except OSError as error:
            if error.errno == errno.ENXIO:  # the rest is a hole or was truncated
                return
        data = os.pread(fd, end - at, at) if at < end else b""
        if not data:
            return
        yield [DATA, b"%d" % at, data, b""]
        at += len(data)


class Reader:
    """Reads a tree. `root` is its open root, a file or a folder (opened with O_PATH); the reader closes it."""

    def __init__(self, root: int, whole: bool = False, contents: bool = True) -> None:
        self.root, self.whole, self.contents = root, whole, contents
        self.forced: list[tuple[bytes, int]] = []
        """Folders that their owner had closed to itself, with their modes; they are open while a snapshot is read."""
        self.records = self.walk()

    def piece(self) -> tuple[list[bytes], bool]:
        """Return the next records as one list of fields, and whether they are the last."""
        fields: list[bytes] = []
        size = 0
        for _ in range(PIECE_RECORDS):
            record = next(self.records, None)
            if record is None:
                return [*fields, END, b"", b"", b""], True
            fields += record
            size += sum(map(len, record))
            if size >= PIECE_BYTES:
                break
        return fields, False

    def close(self) -> None:
        """Restore the tree's folder modes and close it. Idempotent."""
        self.records.close()
        for name, mode in reversed(self.forced):
            self.change_mode(name, mode)
        self.forced = []
        if self.root >= 0:
            os.close(self.root)
            self.root = -1

    def walk(self) -> Generator[list[bytes], None, None]:
        """Yield all records, and an empty one for each entry left out."""
        found = os.fstat(self.root)
        if stat.S_ISREG(found.st_mode):
            yield [FILE, b"", facts(found), b""]
            if self.contents:
                yield from content(self.root, found.st_size)
            return
        if not stat.S_ISDIR(found.st_mode):
            yield [REFUSED, b"", facts(found), kind_of(found.st_mode)]
            return
        yield [FOLDER, b"", facts(found), b""]
        waiting = [b""]
        while waiting:
            above = waiting.pop()
            try:
                folder = self.open_folder(above)
            except OSError as error:
                if error.errno not in VANISHED:
                    raise unreadable(above, error) from error
                continue
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        base = os.fsencode(entry.name)
                        name = above + b"/" + base if above else base
                        try:
                            yield from self.entry(folder, base, name, found.st_dev, waiting)
                        except OSError as error:
                            if error.errno not in VANISHED:
                                raise unreadable(name, error) from error
                            yield []
            finally:
                os.close(folder)

    def entry(self, folder: int, base: bytes, name: bytes, device: int, waiting: list[bytes]) -> Iterator[list[bytes]]:
        """Yield the records of a folder's entry; a subfolder is also added to `waiting`."""
        found = os.stat(base, dir_fd=folder, follow_symlinks=False)
        split_name(name)
        if stat.S_ISLNK(found.st_mode):
            yield [LINK, name, facts(found), os.readlink(base, dir_fd=folder)]
        elif stat.S_ISDIR(found.st_mode):
            yield [FOLDER, name, facts(found), b""]
            if not self.whole or found.st_dev == device:  # a mount inside a place is a tree of its own
                waiting.append(name)
        elif stat.S_ISREG(found.st_mode):
            fd = self.open_file(folder, base)
            try:
                found = os.fstat(fd)
                if stat.S_ISREG(found.st_mode):
                    yield [FILE, name, facts(found), b""]
                    if self.contents:
                        yield from content(fd, found.st_size)
            finally:
                os.close(fd)
        elif not self.whole:
            yield [REFUSED, name, facts(found), kind_of(found.st_mode)]
        elif stat.S_ISFIFO(found.st_mode):
            yield [PIPE, name, facts(found), b""]
        else:
            yield []

    # --- entries closed to their own owner: a snapshot holds them even if the reader is the same user

    def open_folder(self, name: bytes) -> int:
        """Open a folder to list it."""
        if self.whole and os.geteuid() != 0:
            handle = open_below(self.root, name, os.O_PATH) if name else os.dup(self.root)
            try:
                mode = stat.S_IMODE(os.fstat(handle).st_mode)
            finally:
                os.close(handle)
            if mode & 0o500 != 0o500:
                self.forced.append((name, mode))
                self.change_mode(name, mode | 0o500)
        return open_below(self.root, name, os.O_RDONLY)

    def change_mode(self, name: bytes, mode: int) -> None:
        """Change a folder's mode; do nothing if it is gone."""
        try:
            handle = open_below(self.root, name, os.O_PATH) if name else os.dup(self.root)
        except OSError:
            return
        try:
            os.chmod(f"/proc/self/fd/{handle}", mode)
        finally:
            os.close(handle)

    def open_file(self, folder: int, base: bytes) -> int:
        """Open a file to read it."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(base, flags, dir_fd=folder)
        except PermissionError:
            if not self.whole:
                raise
        handle = os.open(base, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            mode = stat.S_IMODE(os.fstat(handle).st_mode)
            os.chmod(f"/proc/self/fd/{handle}", mode | 0o400)
            try:
                return os.open(base, flags, dir_fd=folder)
            finally:
                os.chmod(f"/proc/self/fd/{handle}", mode)
        finally:
            os.close(handle)
