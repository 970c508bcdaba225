"""The host connects to programs that listen in a sandbox, whose network is its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pytest

from ale.errors import SandboxError
from ale.registry.drivers import build_driver
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
from ale_sandbox.host import port_connection
from ale_sandbox.host.port_connection import PortConnection
from ale_sandbox.resident.frames import CONNECT, frame
from ale_sandbox.resident.network import ports

pytestmark = pytest.mark.bwrap
SERVER = """
import socket, sys, threading
family = socket.AF_INET6 if sys.argv[2] == "::1" else socket.AF_INET
listener = socket.create_server((sys.argv[2], 0), family=family)
print(listener.getsockname()[1], flush=True)
def serve(connection):
    with connection:
        if sys.argv[1] == "echo":
            while data := connection.recv(65536):
                connection.sendall(data)
        elif sys.argv[1] == "count":
            total = 0
            while data := connection.recv(65536):
                total += len(data)
            connection.sendall(str(total).encode())
        elif sys.argv[1] == "talk":
            connection.sendall(b"x" * 50_000_000)
        elif sys.argv[1] == "sleep":
            threading.Event().wait()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture
async def box() -> AsyncIterator[Any]:
    """A local sandbox without a network."""
    driver: Any = build_driver("sandbox", PluginChoice(use="local"), DriverContext())
    async with driver as provider, await provider.start_sandbox(SandboxSpec(files={"s.py": SERVER.encode()})) as made:
        yield made


async def listen(box: Any, what: str, address: str = "127.0.0.1") -> int:
    """Start a server in the sandbox and return its port."""
    await box.exec(f"rm -f port; python3 s.py {what} {address} >port 2>&1 &")
    done = await box.exec("while ! test -s port; do sleep 0.01; done; cat port")
    return int(done.stdout)


async def rest(connection: PortConnection) -> bytes:
    """Read to the end."""
    data = bytearray()
    while piece := await connection.read():
        data += piece
    return bytes(data)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_bytes_go_both_ways_and_ends_are_seen(box: Any, address: str) -> None:
    port = await listen(box, "echo", address)
    with closing(await box.connect(port)) as connection:
        await connection.write(b"hello")
        assert await connection.read() == b"hello"
        connection.write_eof()
        assert await rest(connection) == b""
    assert not box.channel.relays


async def test_many_megabytes_arrive_as_they_were_sent(box: Any) -> None:
    port, sent = await listen(box, "echo"), bytes(range(256)) * 40_000
    with closing(await box.connect(port)) as connection:

        async def write() -> None:
            await connection.write(sent)
            connection.write_eof()

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            reading = group.create_task(rest(connection))
    assert reading.result() == sent


async def test_a_program_that_does_not_read_makes_the_writer_wait(box: Any) -> None:
    port = await listen(box, "sleep")
    with closing(await box.connect(port)) as connection:
        writing = asyncio.ensure_future(connection.write(bytes(1 << 26)))
        done, _ = await asyncio.wait([writing], timeout=1)
        assert not done
        assert (await box.exec("echo alive")).stdout == b"alive\n"
        writing.cancel()


async def test_what_waits_for_a_slow_reader_is_bounded(box: Any) -> None:
    port = await listen(box, "talk")
    with closing(await box.connect(port)) as connection:
        await asyncio.sleep(1)
        assert sum(map(len, connection._waiting)) <= port_connection.WINDOW
        assert (await box.exec("echo alive")).stdout == b"alive\n"
        assert len(await rest(connection)) == 50_000_000


async def test_many_connections_at_once(box: Any) -> None:
    port = await listen(box, "count")

    async def one(size: int) -> bytes:
        with closing(await box.connect(port)) as connection:
            await connection.write(bytes(size))
            connection.write_eof()
            return await rest(connection)

    sizes = range(1, 2_000_000, 40_000)
    assert await asyncio.gather(*map(one, sizes)) == [str(size).encode() for size in sizes]


async def test_nothing_listens(box: Any) -> None:
    with pytest.raises(ConnectionRefusedError):
        await box.connect(9)
    with pytest.raises(OSError, match="no such port"):
        await box.connect(70_000)
    assert not box.channel.relays


async def test_too_many_connections_are_refused(box: Any) -> None:
    port = await listen(box, "sleep")
    connections = [await box.connect(port) for _ in range(ports.MOST_CONNECTIONS)]
    with pytest.raises(OSError, match="too many"):
        await box.connect(port)
    for connection in connections:
        connection.close()
    (await box.connect(port)).close()


async def test_a_connection_ends_with_its_program_its_reset_and_its_sandbox(box: Any) -> None:
    port = await listen(box, "sleep")
    with closing(await box.connect(port)) as connection:
        await box.kill_agent_processes()
        assert await rest(connection) == b""
    port = await listen(box, "sleep")
    with closing(await box.connect(port)) as connection:
        await box.reset(box.spec)
        with pytest.raises(ConnectionResetError):
            await rest(connection)
    await box.upload({"s.py": SERVER.encode()})
    port = await listen(box, "sleep")
    with closing(await box.connect(port)) as connection:
        await box.stop()
        with pytest.raises(SandboxError):
            await connection.read()


async def test_who_sends_more_than_was_granted_loses_the_connection(box: Any) -> None:
    port = await listen(box, "sleep")
    with closing(await box.connect(port)) as connection:
        box.channel.write(frame(connection.number, CONNECT, [bytes(1 << 25)]))
        with pytest.raises(OSError, match="granted"):
            await connection.read()
    assert (await box.exec("echo alive")).stdout == b"alive\n"
