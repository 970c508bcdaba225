"""`ale rock forward`: a port of this machine leads to a program that listens in a sandbox.

Each connection becomes a WebSocket to the service (`/sandboxes/ID/portforward`), which reaches 127.0.0.1 in the sandbox
whatever its network policy is.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from urllib.parse import quote

import aiohttp

from ale.errors import ConfigError, SandboxError
from ale_rock.client.service_client import ROCK, ServiceClient
from ale_rock.commands.client import ask_service
from ale_sandbox.host.commands import as_bytes

LOOPBACK = "127.0.0.1"
PIECE_BYTES = 1 << 16


def forward(sandbox_id: str, port: int, local_port: int, url: str, token_env: str | None) -> None:
    """Carry connections until Ctrl-C. Raises `ConfigError`."""

    async def serve(client: ServiceClient) -> None:
        # Fails at once if there is no such sandbox.
        await client.rock("GET", "/get_status", query={"sandbox_id": sandbox_id})
        path = f"{ROCK}/sandboxes/{quote(as_bytes(sandbox_id), safe='')}/portforward?port={port}"

        async def carry_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await carry(client, path, reader, writer)
            except SandboxError as error:
                print(f"error: {error}", file=sys.stderr)
            finally:
                writer.close()

        try:
            server = await asyncio.start_server(carry_one, LOOPBACK, local_port)
        except OSError as error:
            raise ConfigError(
                f"Nothing can listen at {LOOPBACK}:{local_port}: {error.strerror}; choose another --local."
            ) from None
        async with server:
            here = server.sockets[0].getsockname()[1]
            print(f"{LOOPBACK}:{here} leads to port {port} of the sandbox {sandbox_id}; Ctrl-C ends it.", flush=True)
            await server.serve_forever()

    ask_service(url, token_env, serve)


async def carry(client: ServiceClient, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry one connection until one side ends it. Raises `SandboxError` if the service does not take it."""

    async def send() -> None:
        try:
            while piece := await reader.read(PIECE_BYTES):
                await socket.send_bytes(piece)
        except OSError:  # the local client or the service has hung up
            pass
        finally:
            await socket.close()  # an open connection would keep the sandbox from being idle

    async with client.websocket(path) as socket:
        sending = asyncio.create_task(send())
        try:
            async for message in socket:
                if message.type == aiohttp.WSMsgType.BINARY:
                    writer.write(message.data)
                    await writer.drain()
        except OSError:  # the local client has hung up
            pass
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending
