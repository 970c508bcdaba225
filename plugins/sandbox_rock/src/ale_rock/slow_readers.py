"""Lets a sender wait for a reader that is slow.

The kernel takes in megabytes that nobody reads, on each connection between a command and who reads its output. Here the
reader bounds that. Such a connection is used once, since others would be slow on it too.
"""

from __future__ import annotations

import socket

import aiohttp

WINDOW_BYTES = 256 << 10
ONCE = {"Connection": "close"}
"""The header of a request whose connection is used once."""


def bound_window(response: aiohttp.ClientResponse) -> None:
    """Bound how much of a response the kernel takes in before it is read."""
    connection = response.connection
    transport = None if connection is None else connection.transport
    if transport is None:
        return  # all of it is here already
    with socket.fromfd(transport.get_extra_info("socket").fileno(), socket.AF_INET, socket.SOCK_STREAM) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW_BYTES)
