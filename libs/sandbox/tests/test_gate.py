"""The gate of a sandbox's network, asked by whatever may be at its other end; DNS and packets as the relay reads
them."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.echo_service import echo

from ale.errors import ConfigError
from ale.specs.sandbox import SandboxSpec
from ale_sandbox.network import egress_gate
from ale_sandbox.network.egress_gate import BlockedConnection, Gate
from ale_sandbox.network.policy import check_policy, network_plan
from ale_sandbox.resident.network.dns import Names, question
from ale_sandbox.resident.network.relay import destination

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def gate_of(
    tmp_path: Path, *allow: str, endpoint: str | None = None
) -> AsyncIterator[tuple[Gate, list[BlockedConnection]]]:
    """An open gate and what it refused."""
    spec = SandboxSpec(network="allow", allow=allow or ("nothing.invalid:1",), endpoint=endpoint)
    gate = await Gate.open(spec, tmp_path / "gate")
    assert gate is not None
    refused: list[BlockedConnection] = []
    gate.refused = refused.append
    try:
        yield gate, refused
    finally:
        await gate.close()


async def dial(gate: Gate, line: bytes) -> Pair:
    """A connection to the gate with its first line sent."""
    reader, writer = await asyncio.open_unix_connection(str(gate.folder / "socket"))
    writer.write(line)
    return reader, writer


async def answer(gate: Gate, line: bytes) -> bytes:
    """The gate's first byte; empty where it hangs up."""
    reader, writer = await dial(gate, line)
    try:
        return await asyncio.wait_for(reader.read(1), 10)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_an_allowed_address_gets_what_was_sent_and_an_end_of_file_both_ways(tmp_path: Path) -> None:
    async with echo() as port, gate_of(tmp_path, f"127.0.0.1:{port}") as (gate, refused):
        reader, writer = await dial(gate, b"connect 127.0.0.1 %d\n" % port)
        sent = bytes(range(256)) * 40_000

        async def send() -> None:
            writer.write(sent)
            await writer.drain()
            writer.write_eof()

        sending = asyncio.ensure_future(send())
        assert await reader.read(1) == b"+"
        assert await reader.read() == sent
        await sending
        assert (gate.bytes_out, gate.bytes_in) == (len(sent), len(sent))
        assert refused == []
        writer.close()


@pytest.mark.parametrize("host", ["10.1.2.3", "localhost", "0x7f.1", "127.1", "example.org", "endpoint", "*", "::1"])
async def test_what_is_not_allowed_is_refused_and_told_of(tmp_path: Path, host: str) -> None:
    async with echo() as port, gate_of(tmp_path, f"127.0.0.1:{port}") as (gate, refused):
        assert await answer(gate, f"connect {host} {port}\n".encode()) == b"-"
        assert [(r.protocol, r.host, r.port, r.reason) for r in refused] == [
            ("tcp", host, port, "it is not among the allowed hosts")
        ]
        assert await answer(gate, b"connect 127.0.0.1 %d\n" % (port ^ 1)) == b"-", "another port of an allowed host"


@pytest.mark.parametrize("spelling", ["0x7f.1", "127.1", "2130706433", "0177.0.0.1"])
async def test_a_name_never_leads_to_this_machine(tmp_path: Path, spelling: str) -> None:
    async with echo() as port:
        for allow in (f"{spelling}:{port}", f"*:{port}"):
            async with gate_of(tmp_path, allow) as (gate, refused):
                assert await answer(gate, f"connect {spelling} {port}\n".lower().encode()) == b"-"
                assert len(refused) == 1
                assert "may not lead to" in refused[0].reason
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.1", 9))  # nothing is sent
        assert egress_gate.is_own(sock.getsockname()[0])


def test_names_may_lead_to_networks_of_ones_own_and_patterns_to_public_hosts_alone(tmp_path: Path) -> None:
    gate = Gate(SandboxSpec(network="allow", allow=("a:1",)), tmp_path)

    def leads(address: str) -> tuple[bool, bool]:
        parsed = ipaddress.ip_address(address)
        return gate._may_be(parsed, by_name=True), gate._may_be(parsed, by_name=False)

    assert leads("93.184.216.34") == leads("2606:2800:220:1::1") == (True, True)
    assert leads("10.20.30.40") == leads("fd00::5") == leads("100.64.0.1") == (True, False)
    for never in ("127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::", "169.254.169.254", "fe80::1", "224.0.0.1"):
        assert leads(never) == (False, False), never
    assert leads("::ffff:127.0.0.1") == leads("::ffff:169.254.169.254") == (False, False)


async def test_the_model_endpoint_may_be_a_port_or_a_unix_socket(tmp_path: Path) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hi")
        writer.close()

    path = tmp_path / "endpoint"
    async with await asyncio.start_unix_server(greet, str(path)), echo() as port:
        async with gate_of(tmp_path, endpoint=f"unix://{path}") as (gate, _):
            reader, writer = await dial(gate, b"connect endpoint 0\n")
            assert await reader.read() == b"+hi"
            writer.close()
        async with gate_of(tmp_path, endpoint=f"http://127.0.0.1:{port}") as (gate, _):
            assert await answer(gate, b"connect endpoint 0\n") == b"+"
        async with gate_of(tmp_path) as (gate, _):
            assert await answer(gate, b"connect endpoint 0\n") == b"-", "none was named"


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"connect\n", b"connect a b\n", b"x" * 100_000, b"connect \xff 1\n", b"connect a 99999999\n"]
)
async def test_nonsense_ends_its_own_connection_and_no_other(tmp_path: Path, line: bytes) -> None:
    async with echo() as port, gate_of(tmp_path, f"127.0.0.1:{port}") as (gate, _):
        reader, writer = await dial(gate, line)
        writer.write_eof()
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) in (b"", b"-")
        writer.close()
        assert await answer(gate, b"connect 127.0.0.1 %d\n" % port) == b"+"


async def test_reports_are_told_of_one_by_one_up_to_a_number_then_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_gate, "MOST_REFUSALS", 3)
    async with gate_of(tmp_path) as (gate, refused):
        reader, writer = await dial(gate, b"refused\n")
        for i in range(6):
            writer.write(b"tcp 10.0.0.%d 80 2\n" % i)
        writer.write(b"not a report\n")
        await writer.drain()
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 10)
        assert [str(r) for r in refused] == [f"tcp 10.0.0.{i}:80 (2 times): nothing there is allowed" for i in range(3)]
        writer.close()
    assert (refused[-1].protocol, refused[-1].count) == ("other", 6)


async def test_closing_the_gate_ends_its_connections_and_removes_its_folder(tmp_path: Path) -> None:
    async with echo() as port, gate_of(tmp_path, f"127.0.0.1:{port}") as (gate, _):
        reader, writer = await dial(gate, b"connect 127.0.0.1 %d\n" % port)
        assert await reader.read(1) == b"+"
        await gate.close()
        assert await asyncio.wait_for(reader.read(), 10) == b""
        assert not gate.folder.exists()
        writer.close()


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (SandboxSpec(network="allow"), "names no host"),
        (SandboxSpec(allow=("a:1",)), "needs.network is none"),
        (SandboxSpec(network="endpoint-only"), "needs the address of the model endpoint"),
        (SandboxSpec(network="full", endpoint="https://x"), "neither http://HOST:PORT nor unix:///PATH"),
    ],
)
def test_a_policy_that_says_nothing_or_contradicts_itself_is_refused(spec: SandboxSpec, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_policy(spec)


def test_a_sandbox_without_network_has_no_gate() -> None:
    assert network_plan(SandboxSpec(endpoint="http://127.0.0.1:1")) == []
    assert network_plan(SandboxSpec(network="full")) == []


# -- what the relay reads ------------------------------------------------------------------------------------------


def query(name: str, kind: int = 1) -> bytes:
    """A DNS question."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return b"\x12\x34\x01\x00\x00\x01" + bytes(6) + labels + b"\x00" + kind.to_bytes(2, "big") + b"\x00\x01"


def test_names_that_are_allowed_have_an_address_and_others_do_not_exist() -> None:
    names = Names(["pypi.org", "*.example.org", "10.0.0.5", "0x7f.1"])
    reply, refused = names.answer(query("PyPI.org"))
    assert reply[-4:] == bytes([198, 18, 0, 1])
    assert (reply[:2], refused) == (b"\x12\x34", None)
    assert names.name_of["198.18.0.1"] == "pypi.org"
    assert names.answer(query("a.example.org"))[0][-4:] == bytes([198, 18, 0, 3])
    assert names.answer(query("pypi.org", 28))[0][3] & 15 == 0, "it exists, and has no IPv6 address"
    for other in ("example.org", "evil.example.com", "pypi.org.evil.com", "xpypi.org"):
        reply, refused = names.answer(query(other))
        assert (reply[3] & 15, refused) == (3, other)


@given(st.binary(max_size=80))
def test_no_query_harms_the_resolver(data: bytes) -> None:
    reply, _ = Names(["*"]).answer(data)
    assert reply == b"" or reply[:2] == data[:2]


@given(st.lists(st.from_regex(r"[a-z0-9-]{1,20}", fullmatch=True), min_size=1, max_size=5), st.integers(1, 300))
def test_a_question_is_read_as_it_was_asked(labels: list[str], kind: int) -> None:
    name = ".".join(labels)
    assert question(query(name, kind)) == (name, kind, len(query(name, kind)))


@given(st.binary(max_size=96), st.booleans())
def test_no_packet_harms_the_relay(packet: bytes, six: bool) -> None:
    seen = destination(packet, six)
    assert seen is None or 0 <= seen[2] < 65536
