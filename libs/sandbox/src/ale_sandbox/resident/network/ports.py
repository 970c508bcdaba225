"""Connects to a port of a program in the sandbox, for the host. Runs in the resident, inside the sandbox.

1. A `CONNECT` with a new number (port, credit) opens a TCP connection to 127.0.0.1, or to ::1 if nothing listens there.
   Later frames of that number carry what the host sends: a field with bytes, or no field for the end of them.
2. Once it is connected, the resident grants the host `WINDOW` bytes (`ACK`), and again as many as the program has
   taken. The other way, the host grants, and a piece costs its bytes and `PIECE_COST`. So neither side buffers more.
3. A piece without bytes says that the program sends no more. `DONE` comes when both have said so; a connection that
   fails is `FAILED`; `CANCEL` resets it.
"""

from __future__ import annotations

import _socket
import errno
import os
import select

from ale_sandbox.resident.frames import ACK, DONE, FAILED, PIECE, PIECE_COST
from ale_sandbox.resident.network.relay import reset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ale_sandbox.resident.interface import Resident

WINDOW, READ_BYTES = 1 << 18, 1 << 16
GRANT_AT = WINDOW // 8
MOST_CONNECTIONS = 256
ADDRESSES = ((_socket.AF_INET, "127.0.0.1"), (_socket.AF_INET6, "::1"))


def serve(resident: Resident, call: int, fields: list[bytes]) -> None:
    """One `CONNECT`. Raises `OSError` or `ValueError` if it cannot be met."""
    found = resident.ports.get(call)
    if found is not None:
        found.take(fields)
    elif len(fields) == 2:  # else it is about a connection that has failed meanwhile
        port, credit = int(fields[0]), int(fields[1])
        if not 0 < port < 65536:
            raise OSError(errno.EINVAL, "there is no such port")
        if len(resident.ports) >= MOST_CONNECTIONS:
            raise OSError(errno.EMFILE, "the sandbox has too many connections to its ports")
        PortConnection(resident, call, port, credit)


class PortConnection:
    """One connection."""

    def __init__(self, resident: Resident, call: int, port: int, credit: int) -> None:
        self.resident, self.call, self.port, self.credit = resident, call, port, credit
        self.addresses = list(ADDRESSES)
        self.out = bytearray()
        self.granted, self.sent = 0, 0
        """How many more bytes the host may send; how many the program took since the last grant."""
        self.connected = self.ended = self.told = self.shut = False
        """Whether the program sends no more; whether the host does; whether the program was told so."""
        self.mask = 0
        self.dial()

    def dial(self) -> None:
        """Try the next address. Raises `OSError` if it cannot."""
        family, address = self.addresses.pop(0)
        self.sock = _socket.socket(family, _socket.SOCK_STREAM)
        self.sock.setblocking(False)
        code = self.sock.connect_ex((address, self.port))
        if code not in (0, errno.EINPROGRESS):
            self.sock.close()
            if not self.addresses:
                raise OSError(code, os.strerror(code))
            self.dial()
            return
        fd = self.sock.fileno()
        self.resident.ports[self.call] = self
        self.resident.watched[fd] = self.move
        self.resident.newborn.add(fd)
        self.watch(select.EPOLLOUT)

    def watch(self, mask: int) -> None:
        """Poll for this. A connection closed in both directions would report that again and again, so one that waits
        for nothing is not polled."""
        poll, fd = self.resident.poll, self.sock.fileno()
        if mask and not self.mask:
            poll.register(fd, mask)
        elif mask and mask != self.mask:
            poll.modify(fd, mask)
        elif self.mask and not mask:
            poll.unregister(fd)
        self.mask = mask

    def move(self) -> None:
        """Do what can be done now."""
        try:
            if not self.connected and not self.has_connected():
                return
            self.send()
            self.read()
        except BlockingIOError:
            pass
        except OSError as error:
            self.fail(error)
            return
        if self.ended and self.shut:
            self.finish(DONE, [])
            return
        wants = select.EPOLLOUT if self.out else 0
        if not self.ended and self.credit > PIECE_COST:
            wants |= select.EPOLLIN
        self.watch(wants)

    def has_connected(self) -> bool:
        """Return whether the connection is there; try the next address if it failed. Raises `OSError`."""
        code = self.sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        if code:
            if not self.addresses:
                raise OSError(code, os.strerror(code))
            self.let_go()
            self.dial()
            return False
        self.connected = True
        self.sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        self.grant_host(WINDOW)
        return True

    def grant_host(self, count: int) -> None:
        """Let the host send so many bytes more."""
        self.granted += count
        self.resident.send(self.call, ACK, [str(count).encode()])

    def send(self) -> None:
        """Give the program what the host sent."""
        if self.out:
            count = self.sock.send(self.out)
            del self.out[:count]
            self.sent += count
            if self.sent >= GRANT_AT:
                self.grant_host(self.sent)
                self.sent = 0
        if self.told and not self.out and not self.shut:
            self.shut = True
            self.sock.shutdown(_socket.SHUT_WR)

    def read(self) -> None:
        """Give the host what the program sent."""
        if self.ended or self.credit <= PIECE_COST:
            return
        data = self.sock.recv(min(READ_BYTES, self.credit - PIECE_COST))
        self.credit -= len(data) + PIECE_COST
        self.ended = not data
        self.resident.send(self.call, PIECE, [data])

    def take(self, fields: list[bytes]) -> None:
        """Take what the host sent. Raises `ValueError` for more than it was granted."""
        if fields:
            self.granted -= len(fields[0])
            if self.granted < 0 or self.told:
                self.let_go(abort=True)
                raise ValueError("more was sent to a port than was granted")
            self.out += fields[0]
        else:
            self.told = True
        if self.connected:
            self.move()

    def grant(self, credit: int) -> None:
        """Add credit for bytes that the host's reader has taken."""
        self.credit += credit
        if self.connected:
            self.move()

    def fail(self, error: OSError) -> None:
        """Report a failure and forget the connection."""
        self.finish(FAILED, [str(error.errno or 0).encode(), (error.strerror or str(error)).encode()])

    def finish(self, kind: bytes, fields: list[bytes]) -> None:
        """Answer and forget."""
        self.let_go(abort=kind == FAILED)
        self.resident.send(self.call, kind, fields)

    def let_go(self, *, abort: bool = False) -> None:
        """Forget the connection; the program sees a reset if it was cut short."""
        self.resident.ports.pop(self.call, None)
        self.resident.watched.pop(self.sock.fileno(), None)
        if self.sock.fileno() < 0:
            return
        self.watch(0)
        if abort:
            reset(self.sock)
        else:
            self.sock.close()
