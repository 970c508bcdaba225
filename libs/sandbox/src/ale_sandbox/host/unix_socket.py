"""A listen Unix socket at a path of any length."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def listen(path: Path, mode: int = 0o600) -> socket.socket:
    """Make a non-blocking socket that listens at `path`. Raises `OSError`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(path.parent, os.O_PATH)
    try:
        sock.bind(f"/proc/self/fd/{folder}/{path.name}")  # a path may be too long for a socket
        os.chmod(path, mode)
    except OSError:
        sock.close()
        raise
    finally:
        os.close(folder)
    sock.listen(128)
    sock.setblocking(False)
    return sock


@contextmanager
def listener(path: Path) -> Iterator[socket.socket]:
    """Listen at `path` until the block ends."""
    with listen(path) as sock:
        yield sock
