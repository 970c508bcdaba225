"""The network of a sandbox that may reach something: set up by the resident, before any command runs.

1. The sandbox's network namespace has no way out but a Unix socket, the *gate*, behind which the host decides
   (`egress.py`). A relay (`relay.py`) listens where programs expect their hosts and takes their connections there.
2. With `allow`, every address that there is belongs to the sandbox itself (a `local` route to the loopback device), so
   the relay can listen at `10.0.0.5:5432` or at the address that stands for `pypi.org`, and programs need no proxy
   settings. What nobody listens at is refused by the kernel at once, and a packet socket tells the relay of the attempt.
3. The resident holds the sockets and lets go of the rights that they took, then forks the relay, as a user of its own
   where there are several; one that was killed is forked again.
"""

from __future__ import annotations

import _signal as sig  # type: ignore[import-not-found]
import _socket
import os
import time
from array import array

from ale_resident.inside.names import Names, is_address
from ale_resident.inside.rights import drop, prctl
from ale_resident.inside.tree import send_signal

NOBODY = 65534
PATIENCE_S = 0.1
CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW = 10, 12, 13
NETWORK_CAPS = frozenset({CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW})
AF_NETLINK, AF_PACKET = 16, 17
RTM_NEWROUTE, REQUEST_ACK_CREATE = 24, 0x405
SO_ATTACH_FILTER, IP_PKTINFO, IPV6_RECVPKTINFO, IPV6_FREEBIND = 26, 8, 49, 78
ETH_P_IP, ETH_P_IPV6 = 0x0800, 0x86DD
DROP, TAKE = (0x06, 0, 0, 0), (0x06, 0, 0, 96)
LOAD_BYTE, LOAD_BYTE_X, IP_HEADER_LENGTH, AND, JUMP_EQUAL = 0x30, 0x50, 0xB1, 0x54, 0x15
# Of TCP only what opens a connection (SYN without ACK); of IPv4 nothing to 127.0.0.0/8.
FILTER_4 = (
    (LOAD_BYTE, 0, 0, 16), (JUMP_EQUAL, 6, 0, 127), (LOAD_BYTE, 0, 0, 9), (JUMP_EQUAL, 0, 5, 6),
    (IP_HEADER_LENGTH, 0, 0, 0), (LOAD_BYTE_X, 0, 0, 13), (AND, 0, 0, 0x12), (JUMP_EQUAL, 1, 0, 2), DROP, TAKE,
)  # fmt: skip
FILTER_6 = (
    (LOAD_BYTE, 0, 0, 6), (JUMP_EQUAL, 0, 4, 6), (LOAD_BYTE, 0, 0, 53), (AND, 0, 0, 0x12), (JUMP_EQUAL, 1, 0, 2), DROP,
    TAKE,
)  # fmt: skip

Socket = _socket.socket
Target = tuple[str, int]
Filter = tuple[tuple[int, int, int, int], ...]


class Network:
    """The sockets of a sandbox's network and the relay that serves them. Raises `OSError` where it cannot be had."""

    def __init__(self, plan: list[str], gate: str, own_user: bool) -> None:
        self.gate, self.own_user, self.pid = gate, own_user, 0
        self.listeners: list[tuple[Socket, Target | None]] = []
        """(socket, where its connections go; None: to the address that was dialled)."""
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

    def own_every_address(self) -> None:
        """Make all addresses the sandbox's own, see what is sent to them, answer for names."""
        add_local_route(_socket.AF_INET)
        families: list[tuple[int, int, Filter, str]] = [(_socket.AF_INET, ETH_P_IP, FILTER_4, "0.0.0.0")]
        try:
            add_local_route(_socket.AF_INET6)
            families.append((_socket.AF_INET6, ETH_P_IPV6, FILTER_6, "::"))
        except OSError:
            pass  # this kernel has no IPv6, so there is nothing to keep in
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
        """Listen where the allowed hosts are; one pattern of a port takes all of that port."""
        patterns = {port for host, port in hosts if host.startswith("*")}
        for port in sorted(patterns):
            self.listen("0.0.0.0", port, None)
            if len(self.resolvers) > 1:
                self.listen("::", port, None)
        for host, port in hosts:
            if port not in patterns:
                self.listen(host if is_address(host) else self.names.address_of[host], port, (host, port))

    def listen(self, address: str, port: int, target: Target | None) -> None:
        """One more listening socket."""
        family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
        sock = Socket(family, _socket.SOCK_STREAM)
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        if family == _socket.AF_INET6:
            only_six(sock)
        sock.bind((address, port))
        sock.listen(128)
        sock.setblocking(False)
        self.listeners.append((sock, target))

    def start(self) -> None:
        """Fork the relay, which holds no descriptor but the network's own."""
        self.pid = os.fork()
        if self.pid:
            return
        try:
            sig.set_wakeup_fd(-1)
            sig.signal(sig.SIGCHLD, sig.SIG_DFL)
            os.setsid()
            sockets = [*(sock for sock, _ in self.listeners), *self.resolvers, *self.sniffers]
            own = {0, 1, 2, *(sock.fileno() for sock in sockets)}
            for name in os.listdir("/proc/self/fd"):
                if int(name) not in own:
                    close(int(name))
            if self.own_user:
                prctl(8, 0)  # PR_SET_KEEPCAPS: it keeps nothing
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            from ale_resident.inside.relay import Relay

            Relay(self).run()
        finally:
            os._exit(1)

    def stop(self) -> None:
        """Let the relay tell what it has to tell, for a moment; who calls this ends it then."""
        send_signal(self.pid, sig.SIGTERM)
        until = time.monotonic() + PATIENCE_S
        while self.pid and time.monotonic() < until:
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                self.pid = 0
            else:
                time.sleep(0.0005)


def close(fd: int) -> None:
    """Close a descriptor that may be closed already."""
    try:
        os.close(fd)
    except OSError:
        return


def only_six(sock: Socket) -> None:
    """IPv6 alone; and an address that only the route makes its own may be used, as IPv4 takes for granted."""
    sock.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 1)
    sock.setsockopt(_socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)


def add_local_route(family: int) -> None:
    """All addresses of a family belong to the loopback device: `ip route add local 0.0.0.0/0 dev lo`."""
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
    """Let a packet socket take what a classic BPF program takes."""
    code = b"".join(
        op.to_bytes(2, "little") + bytes([true, false]) + value.to_bytes(4, "little")
        for op, true, false, value in steps
    )
    held = array("B", code)
    program = len(steps).to_bytes(2, "little") + bytes(6) + held.buffer_info()[0].to_bytes(8, "little")
    sock.setsockopt(_socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
