"""The network of local sandboxes under load, and where the agent may kill the relay."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support.echo_service import echo

from ale.specs.sandbox import SandboxSpec
from ale_local import LocalSandboxProvider

pytestmark = pytest.mark.bwrap


ROUND_TRIP = """
import hashlib, os, socket, sys, threading
host, port, size, connections = sys.argv[1], *map(int, sys.argv[2:])
def trip(results, i):
    sent = os.urandom(1 << 16) * (size >> 16)
    with socket.create_connection((host, port)) as sock:
        def send():
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)
        threading.Thread(target=send).start()
        got = bytearray()
        while data := sock.recv(1 << 16):
            got += data
    results[i] = bytes(got) == sent
results = [None] * connections
threads = [threading.Thread(target=trip, args=(results, i)) for i in range(connections)]
[t.start() for t in threads]; [t.join() for t in threads]
print(all(results), len(results))
"""


@pytest.mark.parametrize(("mib", "connections"), [(24, 1), (1, 20)])
async def test_what_is_sent_comes_back_whole_however_much_and_however_often(
    wrapped: LocalSandboxProvider, mib: int, connections: int
) -> None:
    async with echo() as port:
        spec = SandboxSpec(network="allow", allow=(f"127.0.0.1:{port}",), endpoint=f"http://127.0.0.1:{port}")
        async with await wrapped.start_sandbox(spec) as box:
            for there in (port, 8600):
                command = f"python3 - 127.0.0.1 {there} {mib << 20} {connections}"
                done = await box.exec(command, stdin=ROUND_TRIP.encode(), timeout_s=100)
                assert done.output == f"True {connections}\n"
            assert box.gate is not None
            assert box.gate.bytes_out == box.gate.bytes_in == 2 * connections * (mib << 20)
            stats = await box.stats()
            assert (stats.network_in_bytes, stats.network_out_bytes) == (box.gate.bytes_in, box.gate.bytes_out)


async def test_a_relay_that_was_killed_is_started_again(wrapped: LocalSandboxProvider) -> None:
    async with echo() as port:
        spec = SandboxSpec(network="allow", allow=(f"127.0.0.1:{port}",))
        async with await wrapped.start_sandbox(spec) as box:
            assert box.gate is not None
            for _ in range(3):
                await box.kill_agent_processes()
                done = await box.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo hi >&3; head -n 1 <&3")
                assert done.output == "hi\n"
            assert len(os.listdir(box.gate.folder)) == 1
        assert not box.gate.folder.exists()


def test_a_user_who_is_not_root_has_the_same_policies(as_user: Callable[[str], list[str]]) -> None:
    assert as_user("network_as_user.py") == [*["hi"] * 5, "refused", *["CapEff:\t0000000000000000"] * 2]
