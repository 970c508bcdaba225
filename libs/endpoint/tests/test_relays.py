"""The relays, each run as it is: in a namespace without a network, and beside faults."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from relay_fixtures import PROGRAMS, agent_in, file_of, relay_command, served
from support.ports import held_port

from ale.errors import ConfigError
from ale_endpoint.relays import script

BOX = ("bwrap", "--unshare-net", "--unshare-pid", "--die-with-parent", "--dev-bind", "/", "/", "--proc", "/proc")
each_relay = pytest.mark.parametrize("name", list(PROGRAMS))


@pytest.fixture
def port() -> Iterator[int]:
    """A port at which a relay can listen, and which nobody else gets meanwhile."""
    with held_port() as port:
        yield port


@asynccontextmanager
async def running(name: str, folder: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A relay that listens."""
    (folder / file_of(name)).write_text(script(name))
    pipe = asyncio.subprocess.PIPE
    relay = await asyncio.create_subprocess_exec(
        *relay_command(name, str(folder), port), stdout=pipe, stderr=pipe, start_new_session=True
    )
    try:
        assert relay.stdout is not None
        line = await asyncio.wait_for(relay.stdout.readline(), 60)
        assert line == f"listening on http://127.0.0.1:{port} for {folder}/endpoint.sock\n".encode(), line
        yield relay
    finally:
        if relay.returncode is None:
            relay.terminate()
        await asyncio.wait_for(relay.wait(), 60)


@asynccontextmanager
async def digester(folder: Path) -> AsyncIterator[None]:
    """A service that answers only after an end of file: with the digest of what it got, and with all of it again."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = await reader.read()
        writer.write(hashlib.sha256(got).digest())
        await asyncio.sleep(0.7)  # longer than socat waits for the second direction by itself
        writer.write(got)
        writer.close()

    async with await asyncio.start_unix_server(serve, str(folder / "endpoint.sock")):
        yield


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection ends, in whatever way it does."""
    with suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), 60)
    return b""


@pytest.mark.bwrap
@each_relay
async def test_an_agent_without_a_network_asks_a_hundred_times_at_once(name: str, tmp_path: Path) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    async with served(tmp_path) as session:
        await agent_in(BOX, str(tmp_path), name, session)


@each_relay
async def test_an_end_of_file_ends_one_direction_alone(name: str, tmp_path: Path, port: int) -> None:
    sent = bytes(range(256)) * 20_000
    async with digester(tmp_path), running(name, tmp_path, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        writer.write_eof()
        got = await asyncio.wait_for(reader.read(), 60)
        assert got == hashlib.sha256(sent).digest() + sent
        writer.close()


@each_relay
async def test_a_signal_ends_the_relay_and_its_connections(name: str, tmp_path: Path, port: int) -> None:
    async with digester(tmp_path), running(name, tmp_path, port) as relay:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        await asyncio.sleep(0.3)
        relay.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(relay.wait(), 60) == 0
        assert await rest(reader) == b""
        writer.close()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))


@each_relay
async def test_a_relay_outlives_the_server_behind_it(name: str, tmp_path: Path, port: int) -> None:
    async with digester(tmp_path):
        relaying = running(name, tmp_path, port)
        await relaying.__aenter__()
    try:
        (tmp_path / "endpoint.sock").unlink(missing_ok=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await rest(reader) == b""
        writer.close()
        async with digester(tmp_path):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 60) == hashlib.sha256(b"").digest()
            writer.close()
    finally:
        await relaying.__aexit__(None, None, None)


@each_relay
async def test_a_relay_that_cannot_work_says_why(name: str, tmp_path: Path) -> None:
    async def complaint() -> str:
        relay = await asyncio.create_subprocess_exec(
            *relay_command(name, str(tmp_path), port), stderr=asyncio.subprocess.PIPE
        )
        _, stderr = await asyncio.wait_for(relay.communicate(), 60)
        assert relay.returncode == 1
        assert stderr.count(b"\n") == 1, stderr
        return stderr.decode()

    (tmp_path / file_of(name)).write_text(script(name))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        assert f"No server answers at the Unix socket {tmp_path}/endpoint.sock" in await complaint()
        async with digester(tmp_path):
            assert f"The port {port} of 127.0.0.1" in await complaint()


def test_the_relays_run_where_old_pythons_are() -> None:
    ast.parse(script("python"), feature_version=(3, 6))
    ast.parse(script("files"), feature_version=(3, 8))


def test_a_relay_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="python, shell, node, log, files"):
        script("perl")
