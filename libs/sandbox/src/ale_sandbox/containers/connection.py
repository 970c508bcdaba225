"""Accepts the connection of a container's resident, which connects to a socket in the folder `control`."""

from __future__ import annotations

import asyncio
import socket

from ale_sandbox.host.memory_watch import peer_pid

SOCKET = "socket"
"""The name of the socket in that folder."""


async def accept(waiting: socket.socket, process: int | None) -> socket.socket:
    """Accept a connection, if `process` is named only from that process: others in the sandbox may try to connect."""
    while True:
        sock, _ = await asyncio.get_running_loop().sock_accept(waiting)
        if process is None or peer_pid(sock) == process:
            return sock
        sock.close()
