"""Closes the host's connection during a checkpoint, which could hold only one end of it, and reconnects afterwards.

The host's socket is removed during the checkpoint; when it is back, the checkpoint is over. In a sandbox restored from
a checkpoint the socket may belong to another host process, and much time may have passed."""

from __future__ import annotations

import _socket
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ale_sandbox.resident.interface import Resident

AWAY_S = 300.0
"""How long to wait for the host; after that it counts as gone."""
LOOK_S = 0.002


def reconnect(resident: Resident, path: str) -> None:
    """Close the connection and make a new one. Does not return if no host comes back."""
    resident.poll.unregister(resident.control)
    os.close(resident.control)
    left = time.monotonic()
    while True:
        timed_out = time.monotonic() - left > AWAY_S  # checked first: a restored process may continue days later
        try:
            resident.use_connection(connect(path))
            break
        except OSError:
            if timed_out:
                resident.end()
            time.sleep(LOOK_S)
    away = time.monotonic() - left
    for command in resident.commands.values():
        command.started += away
        command.deadline += away


def connect(path: str) -> int:
    """Connect to the host, which listens at `path`. Raises `OSError`."""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    sock.connect(path)
    return sock.detach()
