"""Serves an application over HTTP while a context lasts; nothing of the server is left when it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any


def listener_at(host: str, port: int) -> socket.socket:
    """Bind a socket; port 0 stands for a free port. Raises `OSError`."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
    )[0]
    # asyncio sends small answers at once (TCP_NODELAY) only where the protocol is named, which saves 40 ms a call.
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


@asynccontextmanager
async def serving(app: Any, *listeners: socket.socket) -> AsyncIterator[None]:
    """Serve an application at bound sockets while the context lasts; calls that have no answer a second later are cut
    off."""
    import uvicorn

    from ale_endpoint.http_connection import DeadlineConnection

    class Server(uvicorn.Server):
        """Leaves signals to the run, which has to clean up more than a server."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app,
        http=DeadlineConnection,
        ws="none",
        log_level="error",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = Server(config)
    task = asyncio.create_task(server.serve(sockets=list(listeners)))
    try:
        while not server.started:
            if task.done():
                await task
                raise RuntimeError("the HTTP server ended before it had started")
            await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
