"""The relay of a sandbox: forwards programs' connections to the gate, answers DNS queries, reports refused attempts.

1. Each connection gets its own connection to the gate. Its first line names the target; the gate answers `+` or `-`.
   After a `+`, bytes are forwarded both ways, with at most `ROOM` of them buffered in each direction.
2. On one more connection the relay reports what was refused in the sandbox, one line each: `tcp 8.8.8.8 443 3`, where
   the last number says how often. It is a process of its own, forked by the resident. It holds no secrets, and nothing
   depends on its honesty, because the gate decides.
"""

from __future__ import annotations

import _signal as sig  # type: ignore[import-not-found]
import _socket
import os
import select
import time

from ale_sandbox.resident.network.network_setup import NetworkSockets, Socket, Target

ROOM = 1 << 16
MOST_CONNECTIONS = 400
MOST_REFUSED = 1000
"""How many different refused targets are counted between two reports."""
REPORT_S = 0.2
TCP, UDP, ICMP, ICMP6 = 6, 17, 1, 58
ECHO, ECHO6 = 8, 128
RESET = b"\x01\x00\x00\x00\x00\x00\x00\x00"
"""The value of SO_LINGER (on, 0 s) with which closing a socket resets its connection."""


class End:
    """One end of a relayed connection: its socket and the bytes still to be sent to it."""

    def __init__(self, sock: Socket) -> None:
        self.sock, self.fd = sock, sock.fileno()
        self.out = bytearray()
        self.other: End = self
        self.ended = self.shut = self.answered = self.watched = False
        """Whether it sends no more; whether it was told that the other sends no more; whether the gate's `+` was seen;
        whether the loop polls it."""


class Relay:
    """The loop and its connections."""

    def __init__(self, sockets: NetworkSockets, gate: str) -> None:
        self.gate, self.names = gate, sockets.names
        self.poll = select.epoll()
        self.ends: dict[int, End] = {}
        self.listeners = {sock.fileno(): (sock, target) for sock, target in sockets.listeners}
        self.resolvers = {sock.fileno(): sock for sock in sockets.resolvers}
        self.sniffers = {sock.fileno(): sock for sock in sockets.sniffers}
        self.taken = {sock.getsockname()[:2] for sock, _ in sockets.listeners}
        self.any_host = {port for host, port in self.taken if host in ("0.0.0.0", "::")}
        self.refused: dict[bytes, int] = {}
        self.reported: set[bytes] = set()
        self.new = False
        """Whether a new target was refused since the last report."""
        self.reports: Socket | None = None
        self.reported_at = 0.0
        for fd in (*self.listeners, *self.resolvers, *self.sniffers):
            self.poll.register(fd, select.EPOLLIN)

    def run(self) -> None:
        """Serve until the resident ends this process, after the last refusals were reported."""
        sig.signal(sig.SIGTERM, self.end)
        while True:
            for fd, events in self.poll.poll(REPORT_S if self.refused else -1):
                if fd in self.ends:
                    self.move(self.ends[fd], events)
                elif fd in self.listeners:
                    self.accept(*self.listeners[fd])
                elif fd in self.resolvers:
                    self.resolve(self.resolvers[fd])
                else:
                    self.sniff(self.sniffers[fd])
            if self.refused and (self.new or time.monotonic() >= self.reported_at + REPORT_S):
                self.report()

    def end(self, *_: object) -> None:
        """Leave."""
        self.report()
        os._exit(0)

    # --- connections

    def open_gate(self, line: str) -> Socket:
        """Connect to the gate and send the first line. Raises `OSError`."""
        sock = Socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(self.gate)
            sock.send(line.encode())
        except OSError:
            sock.close()
            raise
        return sock

    def accept(self, listener: Socket, target: Target | None) -> None:
        """Accept a connection and open one to the gate for it."""
        try:
            fd, _ = listener._accept()  # type: ignore[attr-defined]  # what `socket.socket.accept` is made of
        except OSError:
            return
        client = Socket(fileno=fd)
        client.setblocking(False)
        if target is None:
            address, port = client.getsockname()[:2]
            target = (self.names.name_of.get(address, address), port)
        try:
            if len(self.ends) >= 2 * MOST_CONNECTIONS:
                raise OSError("too many connections")
            gate = self.open_gate(f"connect {target[0]} {target[1]}\n")
        except OSError:
            reset(client)
            return
        ends = End(client), End(gate)
        ends[0].other, ends[1].other = ends[1], ends[0]
        ends[0].answered = True
        for end in ends:
            self.ends[end.fd] = end
            self.watch(end)

    def move(self, end: End, events: int) -> None:
        """Move the bytes that can be moved from and to an end."""
        try:
            if events & select.EPOLLOUT and end.out:
                del end.out[: end.sock.send(end.out)]
            if (
                events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR)
                and not end.ended
                and self.has_room(end.other)
            ):
                self.take(end, end.sock.recv(ROOM))
        except BlockingIOError:
            pass
        except OSError:
            self.close(end)
            return
        for one in (end, end.other):
            if one.other.ended and not one.out and not one.shut:
                one.shut = True
                try:
                    one.sock.shutdown(_socket.SHUT_WR)
                except OSError:
                    self.close(one)
                    return
        if end.shut and end.other.shut:
            self.close(end)
            return
        self.watch(end)
        self.watch(end.other)

    def watch(self, end: End) -> None:
        """Poll an end for what it can do next, but not one closed in both directions: it would report that again and
        again."""
        wants = select.EPOLLOUT if end.out else 0
        if not end.ended and self.has_room(end.other):
            wants |= select.EPOLLIN
        if end.ended and end.shut:
            if end.watched:
                self.poll.unregister(end.fd)
            end.watched = False
        elif end.watched:
            self.poll.modify(end.fd, wants)
        else:
            self.poll.register(end.fd, wants)
            end.watched = True

    def has_room(self, end: End) -> bool:
        """Return whether more bytes may be buffered for an end."""
        return len(end.out) < ROOM

    def take(self, end: End, data: bytes) -> None:
        """Take bytes that an end sent; the gate's first byte is its answer."""
        if not data:
            end.ended = True
            if not end.answered:
                raise ConnectionError("the gate hung up")
            return
        if not end.answered:
            if data[:1] != b"+":
                raise ConnectionError("the gate refused")
            end.answered = True
            data = data[1:]
        end.other.out += data

    def close(self, end: End) -> None:
        """Close both ends; if that cuts a connection short, the program sees a reset."""
        for one in (end, end.other):
            if one.watched:
                self.poll.unregister(one.fd)
            del self.ends[one.fd]
            if one.shut:
                one.sock.close()
            else:
                reset(one.sock)

    # --- refusals

    def resolve(self, resolver: Socket) -> None:
        """Answer one DNS query."""
        try:
            query, asked_at, _, sender = resolver.recvmsg(1500, 128)
            answer, refused = self.names.answer(query)
            if refused is not None:
                self.note("name", refused, 53)
            if answer:
                resolver.sendmsg([answer], asked_at, 0, sender)  # from the address that was asked
        except OSError:
            return

    def sniff(self, sniffer: Socket) -> None:
        """Note packets sent to addresses at which nothing listens."""
        for _ in range(64):
            try:
                packet, sender = sniffer.recvfrom(96)
            except OSError:
                return
            seen = destination(packet, sender[1] == 0x86DD)
            if seen is None:
                continue
            protocol, host, port = seen
            if protocol != "tcp" or ((host, port) not in self.taken and port not in self.any_host):
                self.note(protocol, self.names.name_of.get(host, host), port)

    def note(self, protocol: str, host: str, port: int) -> None:
        """Count a refused attempt: the first at a target is reported at once, further ones from time to time."""
        key = f"{protocol} {host} {port}".encode("ascii", "backslashreplace")
        if key not in self.refused and len(self.refused) >= MOST_REFUSED:
            key = b"other * 0"
        self.refused[key] = self.refused.get(key, 0) + 1
        if key not in self.reported and len(self.reported) < MOST_REFUSED:
            self.reported.add(key)
            self.new = True

    def report(self) -> None:
        """Write the refused attempts to the gate, as far as the socket takes them."""
        self.reported_at, self.new = time.monotonic(), False
        try:
            if self.reports is None:
                self.reports = self.open_gate("refused\n")
            while self.refused:
                key = next(iter(self.refused))
                self.reports.send(
                    b"%s %d\n" % (key, self.refused[key])
                )  # a line of this size is sent whole or not at all
                del self.refused[key]
        except BlockingIOError:
            return
        except OSError:
            if self.reports is not None:
                self.reports.close()
            self.reports = None


def reset(sock: Socket) -> None:
    """Reset a connection, so that its program sees a failure."""
    try:
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, RESET)
    finally:
        sock.close()


def destination(packet: bytes, six: bool) -> tuple[str, str, int] | None:
    """Parse protocol, address and port of a packet that tries to reach a host; return None for other packets."""
    if six:
        if len(packet) < 48:
            return None
        protocol, host, body = packet[6], _socket.inet_ntop(_socket.AF_INET6, packet[24:40]), packet[40:]
        if host == "::1":
            return None
    else:
        start = (packet[0] & 15) * 4 if packet else 0
        if start < 20 or len(packet) < start + 8:
            return None
        protocol, host, body = packet[9], _socket.inet_ntop(_socket.AF_INET, packet[16:20]), packet[start:]
    ports = int.from_bytes(body[:2], "big"), int.from_bytes(body[2:4], "big")
    if protocol == TCP:
        return "tcp", host, ports[1]
    if protocol == UDP:
        return None if 53 in ports else ("udp", host, ports[1])
    if protocol in (ICMP, ICMP6):
        return ("icmp", host, 0) if body[0] == (ECHO if protocol == ICMP else ECHO6) else None
    return f"ip-{protocol}", host, 0
