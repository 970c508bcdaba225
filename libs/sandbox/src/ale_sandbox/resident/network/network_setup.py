"""Sets up the network inside a sandbox that may reach something, before any command runs.

1. The only way out of the sandbox's network namespace is a Unix socket, the *gate*, behind which the host decides
   (`ale_sandbox.network.egress_gate`). A relay (`relay.py`) listens where programs expect their hosts and forwards
   their connections to the gate.
2. With `allow`, all addresses belong to the sandbox itself (a `local` route to the loopback device), so the relay can
   listen at `10.0.0.5:5432` or at the address that stands for `pypi.org`, and programs need no proxy settings. The
   kernel refuses connections to all other addresses at once, and a packet socket shows these attempts to the relay.
3. The resident opens the sockets, drops the rights that this took, and forks the relay, as a separate user if the
   sandbox has several. A relay that was killed is forked again.
"""

from __future__ import annotations

import _socket
import os
from array import array

from ale_sandbox.resident.network.dns import Names, is_address
from ale_sandbox.resident.privileges import drop

CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW = 10, 12, 13
NETWORK_CAPS = frozenset({CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW})
AF_NETLINK, AF_PACKET = 16, 17
RTM_NEWROUTE, REQUEST_ACK_CREATE = 24, 0x405
SO_ATTACH_FILTER, IP_PKTINFO, IPV6_RECVPKTINFO, IPV6_FREEBIND = 26, 8, 49, 78
ETH_P_IP, ETH_P_IPV6 = 0x0800, 0x86DD
DROP, TAKE = (0x06, 0, 0, 0), (0x06, 0, 0, 96)
LOAD_BYTE, LOAD_BYTE_X, IP_HEADER_LENGTH, AND, JUMP_EQUAL = 0x30, 0x50, 0xB1, 0x54, 0x15
# Only TCP packets that open a connection (SYN without ACK), and no IPv4 packets to 127.0.0.0/8.
FILTER_4 = (
    (LOAD_BYTE, 0, 0, 16),
    (JUMP_EQUAL, 6, 0, 127),
    (LOAD_BYTE, 0, 0, 9),
    (JUMP_EQUAL, 0, 5, 6),
    (IP_HEADER_LENGTH, 0, 0, 0),
    (LOAD_BYTE_X, 0, 0, 13),
    (AND, 0, 0, 0x12),
    (JUMP_EQUAL, 1, 0, 2),
    DROP,
    TAKE,
)
FILTER_6 = (
    (LOAD_BYTE, 0, 0, 6),
    (JUMP_EQUAL, 0, 4, 6),
    (LOAD_BYTE, 0, 0, 53),
    (AND, 0, 0, 0x12),
    (JUMP_EQUAL, 1, 0, 2),
    DROP,
    TAKE,
)

Socket = _socket.socket
Target = tuple[str, int]
Filter = tuple[tuple[int, int, int, int], ...]


class NetworkSockets:
    """The sockets that the relay of a sandbox's network serves. Raises `OSError` if they cannot be made."""

    def __init__(self, plan: list[str]) -> None:
        self.listeners: list[tuple[Socket, Target | None]] = []
        """(socket, target of its connections; None: the address that the program connected to)."""
        self.resolvers: list[Socket] = []
        self.sniffers: list[Socket] = []
        hosts: list[Target] = []
        for line in plan:
            kind, host, port = line.split(" ")
            if kind == "endpoint":
                self.listen("127.0.0.1", int(port), ("endpoint", 0))
            else:
                hosts.append((host, int(port)))
        self.names = Names([host for host, _ in hosts])
        if hosts:
            self.own_every_address()
            self.listen_for(hosts)
        drop(NETWORK_CAPS)

    def all(self) -> list[Socket]:
        """List all sockets."""
        return [*(sock for sock, _ in self.listeners), *self.resolvers, *self.sniffers]

    def own_every_address(self) -> None:
        """Make all addresses the sandbox's own, watch what is sent to them, and open the DNS sockets."""
        add_local_route(_socket.AF_INET)
        families: list[tuple[int, int, Filter, str]] = [(_socket.AF_INET, ETH_P_IP, FILTER_4, "0.0.0.0")]
        try:
            add_local_route(_socket.AF_INET6)
            families.append((_socket.AF_INET6, ETH_P_IPV6, FILTER_6, "::"))
        except OSError:
            pass  # this kernel has no IPv6
        for family, protocol, steps, anywhere in families:
            sniffer = Socket(AF_PACKET, _socket.SOCK_DGRAM, protocol >> 8 | (protocol & 255) << 8)
            attach_filter(sniffer, steps)
            resolver = Socket(family, _socket.SOCK_DGRAM)
            if family == _socket.AF_INET6:
                only_six(resolver)
                resolver.setsockopt(_socket.IPPROTO_IPV6, IPV6_RECVPKTINFO, 1)
            else:
                resolver.setsockopt(_socket.IPPROTO_IP, IP_PKTINFO, 1)
            resolver.bind((anywhere, 53))
            self.sniffers.append(sniffer)
            self.resolvers.append(resolver)
        for sock in (*self.sniffers, *self.resolvers):
            sock.setblocking(False)

    def listen_for(self, hosts: list[Target]) -> None:
        """Listen at the addresses of the allowed hosts; one pattern for a port takes that port of all addresses."""
        patterns = {port for host, port in hosts if host.startswith("*")}
        for port in sorted(patterns):
            self.listen("0.0.0.0", port, None)
            if len(self.resolvers) > 1:
                self.listen("::", port, None)
        for host, port in hosts:
            if port not in patterns:
                self.listen(host if is_address(host) else self.names.address_of[host], port, (host, port))

    def listen(self, address: str, port: int, target: Target | None) -> None:
        """Open one more listening socket."""
        family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
        sock = Socket(family, _socket.SOCK_STREAM)
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        if family == _socket.AF_INET6:
            only_six(sock)
        sock.bind((address, port))
        sock.listen(128)
        sock.setblocking(False)
        self.listeners.append((sock, target))


def only_six(sock: Socket) -> None:
    """Restrict a socket to IPv6, and let it bind to addresses that only the route makes local, as IPv4 always can."""
    sock.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 1)
    sock.setsockopt(_socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)


def add_local_route(family: int) -> None:
    """Give all addresses of a family to the loopback device: `ip route add local 0.0.0.0/0 dev lo`."""
    loopback = b"\x08\x00\x04\x00\x01\x00\x00\x00"  # RTA_OIF: 1
    # table local, protocol static, scope host, type local
    body = bytes([family, 0, 0, 0, 255, 4, 254, 2, 0, 0, 0, 0]) + loopback
    head = (16 + len(body)).to_bytes(4, "little") + RTM_NEWROUTE.to_bytes(2, "little")
    sock = Socket(AF_NETLINK, _socket.SOCK_RAW, 0)
    try:
        sock.send(head + REQUEST_ACK_CREATE.to_bytes(2, "little") + bytes(8) + body)
        code = -int.from_bytes(sock.recv(4096)[16:20], "little", signed=True)
    finally:
        sock.close()
    if code:
        raise OSError(code, f"the sandbox's route could not be set: {os.strerror(code)}")


def attach_filter(sock: Socket, steps: Filter) -> None:
    """Attach a classic BPF filter to a packet socket."""
    code = b"".join(
        op.to_bytes(2, "little") + bytes([true, false]) + value.to_bytes(4, "little")
        for op, true, false, value in steps
    )
    held = array("B", code)
    program = len(steps).to_bytes(2, "little") + bytes(6) + held.buffer_info()[0].to_bytes(8, "little")
    sock.setsockopt(_socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
