"""DNS in a sandbox whose network is `allow`: the allowed names and the addresses that stand for them.

An allowed name gets an address of the range 198.18.0.0/15, which belongs to no host (RFC 2544), and the relay listens
there. No query ever leaves the sandbox: names that are not allowed do not exist. Runs in the relay."""

from __future__ import annotations

import _socket

A, AAAA, PTR, OPT = 1, 28, 12, 41
NO_SUCH_NAME, NOT_IMPLEMENTED, FORMAT_ERROR = 3, 4, 1
TTL_S = 60
MOST_NAMES = 4096
"""The most names that get an address; names that match a pattern get theirs when they are looked up."""


class Names:
    """The allowed hosts: names, addresses, patterns such as `*.example.org`."""

    def __init__(self, hosts: list[str]) -> None:
        self.patterns = [host[1:] for host in hosts if host.startswith("*")]
        self.address_of: dict[str, str] = {}
        self.name_of: dict[str, str] = {}
        for host in hosts:
            if not host.startswith("*") and not is_address(host):
                self.give_address(host)

    def give_address(self, name: str) -> str:
        """Return the address that stands for a name, a new one if needed."""
        if name not in self.address_of:
            number = len(self.address_of) + 1
            address = f"198.{18 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
            self.address_of[name], self.name_of[address] = address, name
        return self.address_of[name]

    def find(self, name: str) -> str | None:
        """Return the address of an allowed name; None for any other."""
        if name in self.address_of:
            return self.address_of[name]
        matches = any(name.endswith(pattern) and name != pattern for pattern in self.patterns)
        return self.give_address(name) if matches and len(self.address_of) < MOST_NAMES else None

    def answer(self, query: bytes) -> tuple[bytes, str | None]:
        """Answer a DNS query (empty if it is invalid); also return the refused name, if one was refused."""
        try:
            name, kind, end = question(query)
        except (IndexError, ValueError):
            return b"", None
        refused = None
        records = b""
        code = 0
        if query[2] & 0x78:
            code = NOT_IMPLEMENTED
        elif (address := self.find(name)) is None:
            code = NO_SUCH_NAME
            refused = None if kind == PTR else name
        elif kind == A:
            address_bytes = bytes(int(part) for part in address.split("."))
            records = b"\xc0\x0c\x00\x01\x00\x01" + TTL_S.to_bytes(4, "big") + b"\x00\x04" + address_bytes
        flags = bytes([0x84 | query[2] & 1, 0x80 | code])
        counts = b"\x00\x01" + (b"\x00\x01" if records else b"\x00\x00") + b"\x00\x00\x00\x00"
        return query[:2] + flags + counts + query[12:end] + records, refused


def question(query: bytes) -> tuple[str, int, int]:
    """Parse a query's only question: name, type and end. Raises `ValueError` or `IndexError` for an invalid query."""
    if len(query) < 17 or query[2] & 0x80 or query[4:6] != b"\x00\x01":
        raise ValueError("no query")
    labels: list[str] = []
    at = 12
    while size := query[at]:
        if size > 63 or at + size >= len(query) or at > 267:
            raise ValueError("no name")
        labels.append(query[at + 1 : at + 1 + size].decode("ascii", "backslashreplace").lower())
        at += 1 + size
    kind = int.from_bytes(query[at + 1 : at + 3], "big")
    if at + 5 > len(query):
        raise ValueError("cut short")
    return ".".join(labels), kind, at + 5


def is_address(host: str) -> bool:
    """Return whether a host of the plan is an address, not a name."""
    try:
        _socket.inet_pton(_socket.AF_INET6 if ":" in host else _socket.AF_INET, host)
    except OSError:
        return False
    return True
