"""`ale rock shell` and `ale rock forward`: what a user does in a sandbox that runs somewhere."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from rock.actions import Command
from service_process import ALE, START_S, Service, StartSandbox
from service_process import Command as Process

pytestmark = [pytest.mark.bwrap, pytest.mark.filterwarnings("ignore:deprecated")]
RESET = socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
"""A socket with this option that is closed resets its connection."""
TAKE_TERMINAL = "import fcntl, os, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
"""Else Ctrl-C would be a character, and no signal."""
ECHO = """
import socket
server = socket.create_server(("127.0.0.1", 3000))
open("ready", "w").close()
while True:
    connection = server.accept()[0]
    with connection:
        while data := connection.recv(65536): connection.sendall(data)
"""


class Terminal:
    """A command that a person types into."""

    def __init__(self, *arguments: str) -> None:
        self._terminal, end = os.openpty()
        command = [sys.executable, "-c", f"{TAKE_TERMINAL}; {ALE}", "rock", *arguments]
        self.process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end)
        os.close(end)
        os.set_blocking(self._terminal, False)
        self.shown = ""

    def type(self, text: str) -> None:
        """Type."""
        os.write(self._terminal, text.encode())

    def wait_for(self, text: str) -> None:
        """Return when this is shown."""
        end = time.monotonic() + START_S
        while text not in self.shown:
            assert time.monotonic() < end, self.shown
            with suppress(OSError):  # nothing is shown yet, or it has ended
                self.shown += os.read(self._terminal, 4096).decode(errors="replace")
            time.sleep(0.01)

    def close(self) -> None:
        """End the command, if it has not ended."""
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)


async def test_ctrl_c_ends_the_line_and_the_shell_goes_on(service: Service, start: StartSandbox) -> None:
    box = await start()
    terminal = Terminal("shell", str(box.sandbox_id), "--url", service.url)
    try:
        await asyncio.to_thread(terminal.wait_for, "$ ")
        terminal.type("x=5; cd /tmp; touch begun; sleep 600\n")
        waiting = ["sh", "-c", "while ! test -e /tmp/begun; do sleep 0.02; done"]
        assert (await box.execute(Command(command=waiting))).exit_code == 0
        terminal.type("\x03")
        terminal.type("echo $x-$PWD; exit 3\n")
        await asyncio.to_thread(terminal.wait_for, "5-/tmp")
        terminal.type("exit 4\n")
        assert await asyncio.to_thread(terminal.process.wait, START_S) == 4
    finally:
        terminal.close()


@pytest.fixture
def forwarding() -> Iterator[list[Process]]:
    """Commands that are stopped afterwards."""
    commands: list[Process] = []
    yield commands
    for command in commands:
        command.stop()


def connections_of(process: Process, service: Service) -> list[object]:
    """The connections of a command to the service."""
    found = psutil.Process(process.process.pid).net_connections("tcp")
    to_service = int(service.url.rpartition(":")[2])
    return [each for each in found if each.status == psutil.CONN_ESTABLISHED and each.raddr.port == to_service]


async def test_a_port_of_this_machine_leads_to_a_program_in_a_sandbox(
    service: Service, start: StartSandbox, tmp_path: Path, forwarding: list[Process]
) -> None:
    box = await start()
    await box.write_file_by_path(ECHO, "echo.py")
    listening = "python3 echo.py >log 2>&1 & while ! test -e ready; do sleep 0.01; done"
    assert (await box.execute(Command(command=["sh", "-c", listening]))).exit_code == 0
    forwarding.append(Process(tmp_path, "forward", ["forward", str(box.sandbox_id), "3000", "--url", service.url]))
    shown = await asyncio.to_thread(forwarding[0].wait_for, "127.0.0.1:")
    for text in (b"abc", bytes(range(256))):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(shown.split()[0]))
        writer.write(text)
        assert await reader.readexactly(len(text)) == text
        writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(shown.split()[0]))
    writer.write(b"abc")
    assert await reader.readexactly(3) == b"abc"
    assert connections_of(forwarding[0], service)
    writer.get_extra_info("socket").setsockopt(*RESET)
    writer.transport.abort()
    while await asyncio.to_thread(connections_of, forwarding[0], service):
        pass  # else the sandbox would never be idle
    assert len(forwarding[0].log.read_text().splitlines()) == 1, "a connection that is reset is no fault"
    forwarding.append(Process(tmp_path, "nowhere", ["forward", str(box.sandbox_id), "9009", "--url", service.url]))
    shown = await asyncio.to_thread(forwarding[1].wait_for, "127.0.0.1:")
    reader, _ = await asyncio.open_connection("127.0.0.1", int(shown.split()[0]))
    assert await reader.read() == b""
    await asyncio.to_thread(forwarding[1].wait_for, "error: The ROCK service")
    assert "nothing listens there" in forwarding[1].log.read_text()
