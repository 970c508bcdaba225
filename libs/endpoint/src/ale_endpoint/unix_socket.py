"""Makes the Unix socket at which a server listens; a sandbox reaches it through its folder, which is mounted there.

The socket belongs to the folder's owner, and nobody else may connect. A socket that a killed server left is replaced;
one at which a server still answers is not. Its path may be longer than the kernel's limit, since it is opened through
the folder's descriptor.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ale.errors import ConfigError


@contextmanager
def unix_listener(path: Path) -> Iterator[socket.socket]:
    """A bound socket at `path`, removed when the block ends. Raises `ConfigError` where there cannot be one."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(
            f"The folder of the Unix socket {path} cannot be opened ({error.strerror}); make it."
        ) from error
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            mine = _bind(sock, path, folder)
            try:
                yield sock
            finally:
                with suppress(FileNotFoundError):
                    if os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_ino == mine:
                        os.unlink(path.name, dir_fd=folder)
    finally:
        os.close(folder)


def _bind(sock: socket.socket, path: Path, folder: int) -> int:
    """Bind the socket; the inode of its file. A lock keeps two servers from taking each other's for a left one."""
    reached = f"/proc/self/fd/{folder}/{path.name}"
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        _make_room(path, folder, reached)
        sock.bind(reached)
        os.chmod(path.name, 0o600, dir_fd=folder)
        owner = os.fstat(folder)
        if owner.st_uid != os.geteuid() == 0:
            os.chown(path.name, owner.st_uid, owner.st_gid, dir_fd=folder)
        sock.listen(1024)
        return os.stat(path.name, dir_fd=folder).st_ino
    except OSError as error:
        raise ConfigError(f"No server can listen at the Unix socket {path}: {error.strerror or error}.") from error
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)


def _make_room(path: Path, folder: int, reached: str) -> None:
    """Remove what a killed server left."""
    try:
        found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"{path} is there and is no socket; name another path for the Unix socket.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full queue is a live server's too
        try:
            probe.connect(reached)
        except ConnectionRefusedError:
            os.unlink(path.name, dir_fd=folder)
            return
        except BlockingIOError:
            pass
    raise ConfigError(f"Another server listens at the Unix socket {path}; end it, or name another path.")
