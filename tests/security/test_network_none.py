"""Attacks on the network where a sandbox has none.

Each program first sees that nothing but a loopback is there, in a network that is not the host's; where that does not
hold, it ends before it sends anything. So no packet can leave this machine, also where an attack succeeds."""

from __future__ import annotations

import pytest

from .attack import ABSENT, DENIED, Attack
from .conftest import everywhere
from .world import World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]
NOWHERE = frozenset({"ENETUNREACH", "EHOSTUNREACH", "ECONNREFUSED", "EADDRNOTAVAIL", "EAFNOSUPPORT"})
GUARD = """
control("a network of its own, and only a loopback in it", in_a_network_of_its_own())
if not in_a_network_of_its_own():
    sys.exit("not tried: a packet could leave")
"""
ATTACKS = [
    Attack(
        "connects to listeners of the host at each of the host's addresses",
        GUARD
        + """
own = socket.create_server(("127.0.0.1", 0))
socket.create_connection(own.getsockname(), 2).close()
control("its own listener")
for address, port in FACTS["addresses"]:
    attempt(f"TCP {address}", socket.create_connection, (address, port), 2)
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as caller:
        caller.settimeout(0.2)
        def ask():
            caller.connect((address, port))
            caller.send(b"x")
            return caller.recv(10)  # refused, where nobody listens
        attempt(f"UDP {address}", ask)
attempt("the sibling's", socket.create_connection, ("127.0.0.1", 8601), 2)
""",
        NOWHERE,
    ),
    Attack(
        "asks the cloud for its secrets, the neighbours and the name servers",
        GUARD
        + """
for address in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.2.1", "172.17.0.1", "10.0.0.1",
                "10.88.0.1", "255.255.255.255", "224.0.0.1", "0.0.0.0", "8.8.8.8"):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as caller:
        caller.settimeout(1)
        attempt(f"TCP {address}", caller.connect, (address, 80))
    if address != "0.0.0.0":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            attempt(f"UDP {address}", caller.sendto, b"x", (address, 53))
for address in ("fd00:ec2::254", "fe80::1%lo", "ff02::1%lo", "2001:db8::1", "::ffff:192.0.2.1"):
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as caller:
        attempt(f"UDP {address}", caller.sendto, b"x", (address, 53))
""",
        NOWHERE | {"ENODEV", "EINVAL", "ENONET"},
    ),
    Attack(
        "sends packets of its own making",
        GUARD
        + """
a, b = socket.socketpair()
control("sockets", b)
attempt("packets", socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0x0300)
attempt("packets, cooked", socket.socket, socket.AF_PACKET, socket.SOCK_DGRAM, 0x0300)
attempt("raw", socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
attempt("raw ICMP", socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
attempt("raw IPv6", socket.socket, socket.AF_INET6, socket.SOCK_RAW, 58)
""",
        DENIED | {"EAFNOSUPPORT"},
    ),
    Attack(
        "sets up links, addresses and routes",
        GUARD
        + """
def netlink(kind, flags, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as asked:
        asked.bind((0, 0))
        asked.send(struct.pack("=IHHII", 16 + len(body), kind, flags | 1 | 4, 1, 0) + body)
        answer = asked.recv(65536)
    (code,) = struct.unpack_from("=i", answer, 16)
    if code:
        raise OSError(-code, os.strerror(-code))
GETLINK, NEWLINK, SETLINK, NEWADDR, NEWROUTE, CREATE = 18, 16, 19, 20, 24, 0x400
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as asked:
    asked.send(struct.pack("=IHHIIBBHiII", 32, GETLINK, 0x301, 1, 0, 0, 0, 0, 0, 0, 0))
    control("links can be listed", b"lo\\0" in asked.recv(65536))
ours = b"\\xc0\\x00\\x02\\x63"
address = struct.pack("=BBBBI", 2, 24, 0, 0, 1) + struct.pack("=HH4sHH4s", 8, 1, ours, 8, 2, ours)
attempt("an address", netlink, NEWADDR, CREATE, address)
route = struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0) + struct.pack("=HHI", 8, 4, 1)
attempt("a route", netlink, NEWROUTE, CREATE, route)
dummy = b"dummy\\0\\0\\0"
link = struct.pack("=BBHiII", 0, 0, 0, 0, 0, 0) + struct.pack("=HHHH", 16, 18, 9, 1) + dummy
attempt("a link", netlink, NEWLINK, CREATE, link)
attempt("bring up", netlink, SETLINK, 0, struct.pack("=BBHiII", 0, 0, 0, 1, 1, 1))
for name in (b"eth0", b"docker0", b"tap0"):
    with socket.socket() as caller:
        attempt(f"bind to {name}", caller.setsockopt, socket.SOL_SOCKET, 25, name + b"\\0")
attempt("a tunnel", os.open, "/dev/net/tun", os.O_RDWR)
""",
        DENIED | ABSENT | {"ENODEV", "EOPNOTSUPP"},
        root=True,
    ),
    Attack(
        "goes round the network by sockets that have no network of their own",
        GUARD
        + """
# Sockets between virtual machines and their host, which no namespace holds back.
VSOCK = 40
control("sockets", socket.socket(socket.AF_UNIX))
attempt("to the host of the machine", socket.socket, VSOCK, socket.SOCK_STREAM)
attempt("datagrams", socket.socket, VSOCK, socket.SOCK_DGRAM)
for name, family in dict(bluetooth=31, can=29, tipc=30, rds=21, nfc=39, qipcrtr=42, xdp=44, phonet=35).items():
    attempt(name, socket.socket, family, socket.SOCK_RAW if family in (29, 44) else socket.SOCK_SEQPACKET)
""",
        DENIED | {"EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT"},
        root=True,
    ),
    Attack(
        "looks names up",
        GUARD
        + """
control("a name that is known here", socket.getaddrinfo("localhost", 80))
def look(name):
    try:
        return socket.getaddrinfo(name, 80)
    except socket.gaierror as error:
        raise OSError(errno.ENETUNREACH, str(error))
for name in ("metadata.google.internal", "host.docker.internal", "example.test"):
    attempt(name, look, name)
""",
        NOWHERE,
    ),
]


@everywhere(ATTACKS)
async def test_nothing_gets_out(world: World, attack: Attack) -> None:
    await world.withstands(attack)
