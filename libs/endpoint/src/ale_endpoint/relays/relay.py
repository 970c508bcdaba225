"""Listens on a loopback port and hands each connection to a Unix socket: `python3 relay.py SOCKET [PORT]`.

For a sandbox without a network whose folders hold the socket of a model endpoint. Needs Python 3.6 or newer and nothing
else. An end of file is passed on in its own direction alone; SIGTERM ends the relay and every connection.
"""

import asyncio
import os
import signal
import socket
import sys

PORT = 8600
PIECE_BYTES = 1 << 16
BACKLOG = 1024


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction, to its end."""
    while True:
        data = await reader.read(PIECE_BYTES)
        if not data:
            break
        writer.write(data)
        await writer.drain()
    writer.write_eof()


class Relay:
    """The connections of one socket."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection. A socket that does not answer ends it; the next one may find it again."""
        far_writer = None
        both = None
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self.path)
            both = asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
            await both
        except OSError:
            if both is not None:
                both.cancel()
            writer.transport.abort()
            if far_writer is not None:
                far_writer.transport.abort()
        else:
            writer.close()
            far_writer.close()


async def run(path: str, port: int) -> None:
    """Listen until a signal comes."""
    loop = asyncio.get_event_loop()
    stopped = asyncio.Event()
    server = await asyncio.start_server(Relay(path).serve, "127.0.0.1", port, backlog=BACKLOG)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    print("listening on http://127.0.0.1:%d for %s" % (port, path), flush=True)  # noqa: UP031
    await stopped.wait()
    server.close()


def main(arguments: list) -> str:  # type: ignore[type-arg]
    """Run; what went wrong, empty where nothing did."""
    if len(arguments) not in (1, 2) or (len(arguments) == 2 and not arguments[1].isdigit()):
        return "usage: relay.py SOCKET [PORT]"
    path, port = arguments[0], int((*arguments, PORT)[1])
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            return f"No server answers at the Unix socket {path} ({error}); mount its folder into the sandbox."
    try:
        asyncio.new_event_loop().run_until_complete(run(path, port))
    except OSError as error:
        return f"The port {port} of 127.0.0.1 cannot be had ({error}); name another one."
    return ""


if __name__ == "__main__":
    problem = main(sys.argv[1:])
    if problem:
        print(f"relay: {problem}", file=sys.stderr)
        sys.stderr.flush()
    os._exit(1 if problem else 0)  # connections that are open are not waited for
