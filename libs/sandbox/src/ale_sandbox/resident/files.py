"""Reads and writes files with the rights of a sandbox's user. Runs in the resident, inside the sandbox."""

from __future__ import annotations

import os
import stat

from ale_sandbox.resident.privileges import Rights

TYPE_CHECKING = False  # importing it, or `collections.abc`, would cost 3 ms of each start
if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_BYTES = 1 << 18


def write(workdir: str, rights: Rights, fields: list[bytes]) -> None:
    """Write files; `fields` are user, mode, 'w' or 'a', then path, content, ... The tests' folders are closed to
    others."""
    user, mode, how = fields[0], int(fields[1], 8), fields[2]
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | (os.O_APPEND if how == b"a" else os.O_TRUNC)
    rights.take(user)
    os.umask(0o077 if user == b"tests" else 0o022)
    try:
        for path, content in zip(fields[3::2], fields[4::2], strict=True):
            target = os.path.join(workdir, os.fsdecode(path))
            try:
                fd = os.open(target, flags, mode)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                fd = os.open(target, flags, mode)
            try:
                if not stat.S_ISREG(
                    os.fstat(fd).st_mode
                ):  # reached through a link of the agent, such as a pipe of this very process
                    raise OSError(22, "not a regular file")
                os.fchmod(fd, mode)
                view = memoryview(content)
                while view:
                    view = view[os.write(fd, view) :]
            finally:
                os.close(fd)
    finally:
        rights.give_back()


def read(workdir: str, rights: Rights, path: str, max_bytes: int, start: int | None = None) -> Iterator[bytes]:
    """Read a file in pieces; refuse one larger than `max_bytes`, or from `start` on read only that many bytes.

    A device or a pipe is refused, because it could block or never end.
    """
    rights.take(b"agent")
    try:
        fd = os.open(os.path.join(workdir, path), os.O_RDONLY | os.O_NONBLOCK)
    finally:
        rights.give_back()
    try:
        kind = os.fstat(fd).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(21, "Is a directory")
        if not stat.S_ISREG(kind):
            raise OSError(22, "not a regular file")
        total = 0
        if start is not None:
            os.lseek(fd, start, 0)
        while piece := os.read(fd, PIECE_BYTES):
            total += len(piece)
            if total > max_bytes and start is None:
                raise OSError(27, f"larger than {max_bytes} bytes")
            yield piece if total <= max_bytes else piece[: max_bytes - total]
            if total >= max_bytes and start is not None:
                return
    finally:
        os.close(fd)
