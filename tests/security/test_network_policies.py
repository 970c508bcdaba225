"""Attacks on the network policies `none`, `endpoint-only` and `allow`: the internet, the metadata address, the host,
siblings.

Every target is a host that the test made itself (`internet.py`), and it tells who came. Each attack first shows that
what the policy does let through works."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from support.echo_service import echo

from ale.specs.driver import DriverContext
from ale_testing.recording_channel import RecordingChannel

from .attack import Attack, judge
from .conftest import Worlds, each_provider, everywhere
from .internet import GREETING, HOST_END, METADATA, SECOND, WEB, WEB_6, Internet
from .listeners import own_addresses
from .world import Scene, World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

UNREACHABLE = frozenset(
    {"ECONNREFUSED", "ECONNRESET", "ENETUNREACH", "EHOSTUNREACH", "EADDRNOTAVAIL", "EPERM", "EACCES"}
)
ENDPOINT_GREETING = b"the model endpoint\n"
ENDPOINT = ("127.0.0.1", 8600, ENDPOINT_GREETING)
GOOD = {"none": [], "endpoint-only": [ENDPOINT], "allow": [ENDPOINT, (WEB, 8443, GREETING), (WEB_6, 8443, GREETING)]}
HELPERS = """
def reach(host, port, kind=socket.SOCK_STREAM, data=b"x"):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, kind) as sock:
        sock.settimeout(4)
        sock.connect((host, port))
        if kind == socket.SOCK_DGRAM:
            sock.send(data)
        got = sock.recv(100)
    if not got:
        raise OSError(errno.ECONNRESET, "closed")
    return got

def udp(host, port, data=b"x"):
    return reach(host, port, socket.SOCK_DGRAM, data)

for host, port, greeting in NET["good"]:
    control(f"what is allowed is reached at {host}:{port}", reach(host, port) == greeting)
if not NET["good"]:
    server = socket.create_server(("127.0.0.1", 7007))
    control("a socket of one's own is reached", socket.create_connection(("127.0.0.1", 7007)) is not None)
"""


def reach(name: str, program: str, *, root: bool = False) -> Attack:
    """An attack that tries to reach somebody."""
    return Attack(name, program, UNREACHABLE, root=root)


ATTACKS = [
    reach(
        "hosts of the internet by their address",
        """
for host in NET["internet"]:
    for port in (22, 80, 443):
        attempt(f"tcp {host}:{port}", reach, host, port)
    attempt(f"udp {host}:443", udp, host, 443)
""",
    ),
    reach(
        "a host that is allowed, at another port and by another protocol",
        """
attempt("tcp 80", reach, NET["web"], 80)
attempt("udp 8443", udp, NET["web"], 999)
""",
    ),
    reach("another host at the port that is allowed", """attempt("tcp", reach, NET["second"], 8443)"""),
    reach(
        "the metadata address, also in IPv6's dress",
        """
attempt("tcp", reach, NET["metadata"], 80)
attempt("mapped", reach, "::ffff:" + NET["metadata"], 80)
attempt("udp", udp, NET["metadata"], 123)
""",
    ),
    reach("IPv6", """attempt("tcp", reach, NET["six"], 80); attempt("udp", udp, NET["six"], 999)"""),
    reach(
        "a service of the host at each of its addresses",
        """
for host in NET["host"]:
    attempt(host, reach, host, NET["service"])
    attempt("udp " + host, udp, host, NET["service"])
""",
    ),
    reach(
        "the model endpoint's own port on the host's loopback",
        """
for host in ("127.0.0.1", "127.0.0.2", "::ffff:127.0.0.1", *NET["host"]):
    attempt(host, reach, host, NET["endpoint_port"])
""",
    ),
    reach(
        "a service of another sandbox",
        """
for host in ("127.0.0.1", *NET["host"]):
    attempt(host, reach, host, 8601)
""",
    ),
    reach(
        "a DNS tunnel: long names, odd types, a resolver outside",
        """
question = b"\\x3f" + b"a" * 63 + b"\\x06tunnel\\x04test\\x00\\x00\\x10\\x00\\x01"
query = b"\\x12\\x34\\x01\\x00\\x00\\x01" + bytes(6) + question
def tunnel(host):
    got = udp(host, 53, query)
    if got[:4] == b"\\x12\\x34\\x85\\x83":  # the sandbox's own: there is no such name
        raise OSError(errno.EHOSTUNREACH, "no such name")
    reveal(got)
for host in (NET["web"], NET["metadata"], "127.0.0.1", NET["six"]):
    attempt(host, tunnel, host)
attempt("tcp", reach, NET["web"], 53)
""",
    ),
    reach(
        "raw sockets, packet sockets, netlink, routes and interfaces",
        """
import fcntl
for family, kind, number in ((2, 3, 1), (2, 3, 255), (10, 3, 58), (17, 3, 0x0300), (17, 2, 0x0008)):
    attempt(f"socket {family} {kind} {number}", socket.socket, family, kind, number)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    attempt("interface down", fcntl.ioctl, sock, 0x8914, struct.pack("16sH14x", b"lo", 0))
    attempt("address", fcntl.ioctl, sock, 0x8916, struct.pack("16sHH4s8x", b"lo", 2, 0, b"\\x0a\\x00\\x00\\x07"))
    attempt("bound to a device", sock.setsockopt, socket.SOL_IP, 19, 1)  # IP_TRANSPARENT
def route():
    with socket.socket(16, socket.SOCK_RAW, 0) as sock:
        body = bytes([2, 0, 0, 0, 254, 4, 253, 1, 0, 0, 0, 0]) + b"\\x08\\x00\\x04\\x00\\x01\\x00\\x00\\x00"
        sock.send(struct.pack("IHHII", 16 + len(body), 24, 0x405, 0, 0) + body)
        code = -struct.unpack("i", sock.recv(4096)[16:20])[0]
        if code:
            raise OSError(code, os.strerror(code))
attempt("route", route)
""",
        root=True,
    ),
    reach(
        "an abstract socket of the host's",
        """
def abstract(name):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(name)
attempt("abstract", abstract, "\\0" + NET["abstract"])
""",
    ),
    reach(
        "a reverse tunnel that is tried again and again",
        """
for turn in range(20):
    attempt(f"turn {turn}", reach, NET["web"], 22)
""",
    ),
    reach(
        "the gate itself, asked for what it must refuse",
        """
def ask(line):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect("/.ale/gate/socket")
        sock.sendall(line)
        got = sock.recv(100)
    if got[:1] != b"+":
        raise OSError(errno.ECONNREFUSED, "refused")
    reveal(got)
if not os.path.exists("/.ale/gate/socket"):
    found("gate", False, "ECONNREFUSED")
for host, port in ((NET["web"], 80), (NET["second"], 8443), (NET["metadata"], 80), ("localhost", NET["service"]),
                   ("0x7f.1", NET["service"]), ("127.0.0.1", NET["service"]), (NET["host"][0], NET["service"]),
                   ("::1", NET["service"]), ("endpoint", 1), ("..", 1)):
    if os.path.exists("/.ale/gate/socket"):
        attempt(f"{host} {port}", ask, f"connect {host} {port}\\n".encode())
""",
        root=True,
    ),
    reach(
        "killing or tracing the relay",
        """
pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (1, os.getpid(), os.getppid())]
others = [pid for pid in pids if os.stat(f"/proc/{pid}").st_uid != os.getuid()]
found("none", bool(not others and NET["good"] and not FACTS["root"]), "EPERM")
for pid in others:
    attempt(f"kill {pid}", os.kill, pid, 9)
    attempt(f"trace {pid}", call, "ptrace", 16, pid, 0, 0)
    attempt(f"sockets {pid}", os.listdir, f"/proc/{pid}/fd")
""",
    ),
]


@pytest.fixture(scope="session")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    """The stand-in for the internet, seen to be reached from the host."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces take root and the program `ip`")
    made = Internet(tmp_path_factory.mktemp("internet"))
    try:
        for host in (WEB, SECOND, METADATA, WEB_6):
            with socket.create_connection((host, 80), timeout=10) as sock:
                assert sock.recv(100) == GREETING
        yield made
    finally:
        made.close()


@dataclass
class Cell:
    """A sandbox under a policy, and the host's services around it. No attack on the network spoils it for the next."""

    scene: Scene
    service: socket.socket
    facts: dict[str, Any]


@asynccontextmanager
async def cell_of(world: World, policy: str) -> AsyncIterator[Cell]:
    """A cell. `allow` lets the web host's port 8443 through, by both its addresses."""
    reachable = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with reachable as service, socket.socket(socket.AF_UNIX) as abstract:
        service.settimeout(0.05)
        name = f"ale-test-{world.name}-{policy}-{os.getpid()}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        async with echo(ENDPOINT_GREETING) as port:
            settings: dict[str, Any] = {"network": policy}
            if policy != "none":
                settings["endpoint"] = f"http://127.0.0.1:{port}"
            if policy == "allow":
                settings["allow"] = (f"{WEB}:8443", f"[{WEB_6}]:8443")
            facts = {
                "good": GOOD[policy],
                "internet": [WEB, SECOND, METADATA, WEB_6],
                "web": WEB,
                "second": SECOND,
                "metadata": METADATA,
                "six": WEB_6,
                "host": [HOST_END, *(set(own_addresses()) - {HOST_END, "127.0.0.1", "::1"})],
                "abstract": name,
                "service": service.getsockname()[1],
                "endpoint_port": port,
            }
            async with world.arena(world.spec(**settings)) as scene:
                yield Cell(scene, service, facts)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cells(worlds: Worlds) -> AsyncIterator[tuple[dict[tuple[str, str], Cell], AsyncExitStack]]:
    """Those that tests have asked for, by provider and policy; they end before the worlds do."""
    async with AsyncExitStack() as exits:
        yield {}, exits


@pytest_asyncio.fixture(loop_scope="session")
async def cell(request: pytest.FixtureRequest, world: World, outside: Internet, cells: Any) -> Cell:
    """The cell of the provider and the policy that are the parameters."""
    made, exits = cells
    key = (world.name, request.param)
    if key not in made:
        made[key] = await exits.enter_async_context(cell_of(world, request.param))
    return made[key]  # type: ignore[no-any-return]


def under(*policies: str) -> pytest.MarkDecorator:
    """Parametrize a test with `cell`."""
    return pytest.mark.parametrize("cell", policies, indirect=True)


@under("endpoint-only", "allow")
@everywhere(ATTACKS)
async def test_nothing_gets_out(world: World, cell: Cell, attack: Attack, outside: Internet) -> None:
    before = outside.visits()
    result = await cell.scene.run(f"NET = {cell.facts!r}\n{HELPERS}\n{attack.program}", timeout_s=60)
    judge(attack, result)
    allowed = sorted(f"tcp {host} {port}" for host, port, greeting in cell.facts["good"] if greeting == GREETING)
    assert sorted(outside.visits()[len(before) :]) == allowed, "who came to the internet"
    with pytest.raises(TimeoutError):
        cell.service.accept()


@under("none")
@everywhere(ATTACKS[:4])
async def test_nothing_gets_out_where_there_is_no_network_at_all(
    world: World, cell: Cell, attack: Attack, outside: Internet
) -> None:
    await test_nothing_gets_out(world, cell, attack, outside)


@each_provider()
async def test_every_refused_attempt_is_an_event_with_sandbox_and_task(world: World, outside: Internet) -> None:
    channel = RecordingChannel()
    kept = world.provider.context
    world.provider.context = DriverContext(channel=channel)
    try:
        spec = world.spec(network="allow", allow=(f"{WEB}:8443",), labels={"task": "t-7"})
        async with world.arena(spec) as scene:
            program = f"""
def quietly(action, *values):
    with contextlib.suppress(OSError):
        action(*values)
for i in range(30):
    quietly(socket.create_connection, ("{SECOND}", 1000 + i), 4)
    quietly(socket.create_connection, ("{SECOND}", 80), 4)
quietly(socket.getaddrinfo, "evil.test", 80)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    for _ in range(5):
        quietly(sock.sendto, b"x", ("{METADATA}", 123))
quietly(socket.create_connection, ("{WEB_6}", 443), 4)
"""
            assert (await scene.run(program)).exit_code == 0
            wanted = {("tcp", SECOND, 1000 + i): 1 for i in range(30)} | {
                ("tcp", SECOND, 80): 30,
                ("name", "evil.test", 53): 1,
                ("udp", METADATA, 123): 5,
                ("tcp", WEB_6, 443): 1,
            }
            for _ in range(200):
                counts: dict[tuple[str, str, int], int] = {}
                for _, event in channel.events:
                    key = (event["protocol"], event["host"], event["port"])
                    counts[key] = counts.get(key, 0) + event["count"]
                if all(counts.get(key, 0) >= count for key, count in wanted.items()):
                    break
                await asyncio.sleep(0.05)
            missing = {key: (counts.get(key, 0), n) for key, n in wanted.items() if counts.get(key, 0) < n}
            assert not missing, missing
            assert counts["tcp", SECOND, 80] == 30, "each attempt is counted once"
            assert {kind for kind, _ in channel.events} == {"network_refused"}
            assert {(e["sandbox"], e["labels"]["task"]) for _, e in channel.events} == {(scene.box.id, "t-7")}
    finally:
        world.provider.context = kept
