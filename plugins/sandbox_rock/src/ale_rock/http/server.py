"""A server's process: its event loop, its socket, the HTTP server, signals, and messages without tokens.

The HTTP server leaves signals to the command, which has more to end than the server.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from pydantic import SecretStr

from ale.cli.messages import configure_messages
from ale.errors import ConfigError

GRACE_S, BACKLOG, OPEN_FILES = 5, 4096, 1 << 16


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a server's program on uvloop, whose requests cost half of asyncio's."""
    import uvloop

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A sandbox takes three files of its worker, a client or worker takes one of the admin; many systems begin with
    # 1,024 and let every process raise that.
    if 0 <= soft < (enough := OPEN_FILES if hard < 0 else min(OPEN_FILES, hard)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def listener_at(host: str, port: int) -> socket.socket:
    """Bind a socket; port 0 stands for a free port. Raises `ConfigError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
        # asyncio sends small answers at once (TCP_NODELAY) only where the protocol is named.
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"Nothing can listen at {host}: {error}.") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # a client that connects while the application starts waits for it
    except OSError as error:
        listener.close()
        raise ConfigError(f"Nothing can listen at {host}:{port}: {error}; choose another --port.") from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL at which a bound socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@asynccontextmanager
async def serving(app: Any, listener: socket.socket, head_s: float = 30.0) -> AsyncIterator[None]:
    """Serve an application while the context lasts, its lifespan included. `head_s`: time for a request's head."""
    import uvicorn

    from ale_rock.http.head_limits import bounded_protocol

    class Server(uvicorn.Server):
        """uvicorn's server, which leaves signals to the command. uvicorn has no setting for that."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app,
        http=bounded_protocol(head_s),
        log_level="error",
        access_log=False,  # an access log of this service would hold ids and paths of users
        lifespan="off",
        server_header=False,
        proxy_headers=False,  # the address of a client is not used here
        backlog=BACKLOG,
        timeout_keep_alive=75,
        ws="wsproto",
        ws_per_message_deflate=False,  # a small message could become a huge one
        timeout_graceful_shutdown=GRACE_S,
    )
    server = Server(config)
    # The lifespan is entered here and not by the server, so that an error in it is raised as it is.
    async with app.router.lifespan_context(app):
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started:
                if task.done():
                    await task
                    raise ConfigError("The HTTP server ended before it had started.")
                await asyncio.sleep(0.01)
            yield
        finally:
            server.should_exit = True
            await asyncio.gather(task, return_exceptions=True)


def leave_on_signals() -> asyncio.Event:
    """Return an event that Ctrl-C and SIGTERM set."""
    leave = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, leave.set)
    return leave


def show_messages(tokens: Iterable[SecretStr | None]) -> None:
    """Print the messages of this process to standard error, with these tokens left out."""
    known = [token.get_secret_value() for token in tokens if token is not None]

    def without_tokens(text: str) -> str:
        for token in known:
            text = text.replace(token, "[token]")
        return text

    configure_messages(lambda text: print(text, file=sys.stderr, flush=True), without_tokens)
