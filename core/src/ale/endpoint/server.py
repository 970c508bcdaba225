"""An HTTP server within a context: bound sockets, an application, and nothing left when the context ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any


def listener_at(host: str, port: int) -> socket.socket:
    """A socket that is bound; port 0: a free one. Raises `OSError`."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
    )[0]
    # The protocol is named, for asyncio sends small answers at once (TCP_NODELAY) only where it knows it: else 40 ms a call.
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
    """Serve an application at bound sockets while the context lasts; what is not answered a second after it is cut off."""
    import uvicorn

    from ale.endpoint.connection import Connection

    class Server(uvicorn.Server):
        """Leaves signals to the run, which has to clean up more than a server."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app,
        http=Connection,
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
