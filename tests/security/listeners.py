"""Sockets of the host that nobody in a sandbox may reach, and who came to them all the same."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path


class Listeners:
    """Sockets of the host that nobody in a sandbox may reach: TCP and UDP at each of its addresses, and Unix
    sockets."""

    def __init__(self, folder: Path, name: str) -> None:
        self.abstract = f"\0ale-host-{name}"
        self.path = str(folder / "socket")
        self.sockets: dict[str, socket.socket] = {}
        self.addresses: list[tuple[str, int]] = []
        self._listen("abstract", socket.AF_UNIX, self.abstract)
        self._listen("path", socket.AF_UNIX, self.path)
        os.chmod(self.path, 0o777)
        for address in own_addresses():
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            port = self._listen(f"tcp {address}", family, (address, 0))
            udp = socket.socket(family, socket.SOCK_DGRAM)
            udp.bind((address, port))
            udp.setblocking(False)
            self.sockets[f"udp {address}"] = udp
            self.addresses.append((address, port))
        self.check()

    def _listen(self, name: str, family: socket.AddressFamily, address: str | tuple[str, int]) -> int:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.bind(address)
        sock.listen(8)
        sock.setblocking(False)
        self.sockets[name] = sock
        return 0 if isinstance(address, str) else int(sock.getsockname()[1])

    def check(self) -> None:
        """They can be reached from here: that nobody came means something."""
        for name, listening in self.sockets.items():
            with socket.socket(listening.family, listening.type) as caller:
                caller.connect(listening.getsockname())
                if name.startswith("udp"):
                    caller.send(b"x")
        time.sleep(0.01)
        assert sorted(self.visited()) == sorted(self.sockets)

    def visited(self) -> list[str]:
        """Those that somebody came to since this was asked last."""
        found = []
        for name, sock in self.sockets.items():
            with suppress(BlockingIOError):
                if name.startswith("udp"):
                    sock.recv(100)
                else:
                    sock.accept()[0].close()
                found.append(name)
        return found

    def close(self) -> None:
        """Close them."""
        for sock in self.sockets.values():
            sock.close()


def own_addresses() -> list[str]:
    """This machine's own addresses: packets between them never leave it."""
    lines = Path("/proc/net/fib_trie").read_text().splitlines()
    four = {lines[i - 1].split()[-1] for i, line in enumerate(lines) if "32 host LOCAL" in line}
    six = set()
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            number, _, _, scope, flags, _ = line.split()
            if scope != "20" and not int(flags, 16) & 0x40:  # no link-local one, none that is still tentative
                six.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number)))
    found = []
    for address in sorted(four | six):
        with suppress(OSError), socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
            found.append(address)
    return found
