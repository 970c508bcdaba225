"""The host's end of a sandbox's network: an egress proxy on a Unix socket, the *gate*. It decides what may pass.

1. A connection of the sandbox's relay begins with one line: `endpoint`, `connect HOST PORT` or `refused`. The gate
   checks the policy itself and trusts nothing that the sandbox claims.
2. The host resolves names, and connects to the very address that it checked. A name never leads to this machine, to a
   link-local (metadata) address or to containers of this machine, and a pattern (`*.example.org`, `*`) only to public
   addresses. An address that the user wrote into the policy is connected to as it is.
3. Whatever the gate or the relay refuses becomes a `BlockedConnection`.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ale.specs.driver import DriverContext
from ale.specs.sandbox import Sandbox, SandboxSpec, host_and_port
from ale_sandbox.host.owned_folders import remove_folder
from ale_sandbox.host.unix_socket import listen
from ale_sandbox.network.policy import endpoint_address, network_plan

log = logging.getLogger("ale.sandbox.egress")
PIECE_BYTES = 1 << 16
LINE_BYTES = 400
LINE_TIMEOUT_S, DIAL_TIMEOUT_S = 10.0, 20.0
MOST_CONNECTIONS = 512
MOST_REFUSALS = 1000
"""How many refusals of a sandbox are reported one by one; further ones are only counted."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class BlockedConnection:
    """An attempt of a program in the sandbox to reach something, which the policy forbids."""

    protocol: str
    """`tcp`, `udp`, `icmp`, `name` (a DNS query), `endpoint`, or `other` (too many to be reported one by one)."""
    host: str
    port: int
    count: int
    reason: str

    def __str__(self) -> str:
        where = f"{self.host}:{self.port}" if self.protocol in ("tcp", "udp") else self.host
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.protocol} {where}{times}: {self.reason}"


class Gate:
    """The gate of one sandbox, in its own folder. It calls `refused` for each blocked connection."""

    def __init__(self, spec: SandboxSpec, folder: Path) -> None:
        self.folder = folder
        self.endpoint = None if spec.endpoint is None else endpoint_address(spec.endpoint)
        self.allow = [host_and_port(entry) for entry in spec.allow] if spec.network == "allow" else []
        self.refused: Callable[[BlockedConnection], None] = lambda _: None
        self.bytes_in = self.bytes_out = 0
        """Bytes that the sandbox received and sent."""
        self.reported = self.unreported = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, spec: SandboxSpec, folder: Path) -> Gate | None:
        """Open a new sandbox's gate, which listens in a new folder; return None if the sandbox needs none."""
        if not network_plan(spec):
            return None
        gate = cls(spec, folder)
        gate._server = await asyncio.start_unix_server(gate._serve, sock=gate._socket(), limit=PIECE_BYTES)
        return gate

    def _socket(self) -> socket.socket:
        # Only the sandbox can connect, because the socket's folder is mounted nowhere else.
        self.folder.mkdir(mode=0o755)
        return listen(self.folder / "socket", 0o666)

    async def close(self) -> None:
        """End all connections and remove the folder. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        remove_folder(self.folder)
        if self.unreported:
            self.refused(
                BlockedConnection("other", "*", 0, self.unreported, "more refusals than are reported one by one")
            )
            self.unreported = 0

    # --- connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._tasks) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._tasks.add(task)
        try:
            await self._let_through(reader, writer)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # either end has closed the connection
        except asyncio.CancelledError:
            pass  # `close` cancels this and waits for it; asyncio's streams would report it as an error
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _let_through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(LINE_TIMEOUT_S):
            words = await self._line(reader)
        if words == ["refused"]:
            while True:
                self._take_report(await self._line(reader))
        try:
            far_reader, far_writer = await self._dial(words)
        except OSError as error:
            writer.write(b"-")
            await writer.drain()
            if isinstance(error, PermissionError) and len(words) == 3:
                self._report_refusal(BlockedConnection("tcp", words[1], int(words[2]), 1, str(error.strerror)))
            return
        try:
            writer.write(b"+")
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, far_writer, outward=True))
                both.create_task(self._pump(far_reader, writer, outward=False))
        except* (OSError, ValueError):
            pass
        finally:
            far_writer.transport.abort()

    async def _line(self, reader: asyncio.StreamReader) -> list[str]:
        line = await reader.readuntil(b"\n")
        if len(line) > LINE_BYTES:
            raise ValueError("the line is too long")
        return line.decode("ascii").split()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, outward: bool) -> None:
        writer.transport.set_write_buffer_limits(
            0
        )  # `drain` waits until the kernel has everything, so nothing is lost at the end
        while data := await reader.read(PIECE_BYTES):
            if outward:
                self.bytes_out += len(data)
            else:
                self.bytes_in += len(data)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    async def _dial(self, words: list[str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the line's target, if that is allowed. Raises `PermissionError` with the reason, or `OSError`."""
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            if words == ["connect", "endpoint", "0"] and self.endpoint is not None:
                if isinstance(self.endpoint, str):
                    return await asyncio.open_unix_connection(self.endpoint, limit=PIECE_BYTES)
                return await asyncio.open_connection(*self.endpoint, limit=PIECE_BYTES)
            if len(words) != 3 or words[0] != "connect" or not words[2].isdigit():
                raise ConnectionError("no request")
            failure: OSError = ConnectionError("no address")
            for address in await self.addresses(words[1], int(words[2])):
                try:
                    return await asyncio.open_connection(address, int(words[2]), limit=PIECE_BYTES)
                except OSError as error:
                    failure = error
            raise failure

    # --- the policy

    async def addresses(self, host: str, port: int) -> list[str]:
        """Find the addresses that may be connected to for a host. Raises `PermissionError` with the reason if there are
        none."""
        by_name, by_pattern = self._rule(host, port)
        literal = as_address(host)
        if literal is not None and by_name:
            return [host]
        if not by_name and not by_pattern:
            raise PermissionError(errno.EACCES, "it is not among the allowed hosts")
        if literal is not None:
            found = [literal]
        else:
            loop = asyncio.get_running_loop()
            answers = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found = [ipaddress.ip_address(str(a[4][0]).partition("%")[0]) for a in answers]
        good = [str(a) for a in found if self._may_be(a, by_name)]
        if not good:
            raise PermissionError(errno.EACCES, f"it leads to {found[0]}, which a name or a pattern may not lead to")
        return good

    def _rule(self, host: str, port: int) -> tuple[bool, bool]:
        """Return whether an entry of the policy names the host, and whether a pattern matches it."""
        hosts = [allowed for allowed, its_port in self.allow if its_port == port]
        fits = any(allowed.startswith("*") and host.endswith(allowed[1:]) for allowed in hosts)
        return host in hosts, fits

    def _may_be(self, address: Address, by_name: bool) -> bool:
        """Return whether a name (or, if not `by_name`, a pattern) may lead to an address."""
        plain = getattr(address, "ipv4_mapped", None) or address
        if plain.is_loopback or plain.is_link_local or plain.is_multicast or plain.is_unspecified or is_own(str(plain)):
            return False
        if any(plain in network for network in container_networks()):
            return False
        return by_name or bool(plain.is_global)

    # --- refusals

    def _take_report(self, words: list[str]) -> None:
        if len(words) == 4 and words[2].isdigit() and words[3].isdigit():
            protocol, host, port, count = words[0][:12], words[1], int(words[2]), int(words[3])
            reason = "the name is not among the allowed hosts" if protocol == "name" else "nothing there is allowed"
            self._report_refusal(BlockedConnection(protocol, host, port, count, reason))

    def _report_refusal(self, refusal: BlockedConnection) -> None:
        if self.reported < MOST_REFUSALS:
            self.reported += 1
            self.refused(refusal)
        else:
            self.unreported += refusal.count


def report(sandbox: Sandbox, context: DriverContext, refusal: BlockedConnection) -> None:
    """Record a refusal as an event of the run and call the observers' hooks."""
    labels = {**context.labels, **sandbox.spec.labels}
    found = asdict(refusal)
    log.info("sandbox %s: refused %s", sandbox.id, refusal)
    context.channel.event("network_refused", sandbox=sandbox.id, **found, labels=labels)
    context.channel.notify("ale_network_refused", sandbox_id=sandbox.id, labels=labels, **found)


def as_address(host: str) -> Address | None:
    """Parse a host as an address; return None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_own(address: str) -> bool:
    """Return whether an address belongs to this machine: only then can a socket be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((address, 0))
        except OSError:
            return False
    return True


def container_networks() -> list[ipaddress.IPv4Network]:
    """Return the networks of this machine's bridges, which connect its containers."""
    found = []
    for line in read_lines(Path("/proc/net/route"))[1:]:
        device, destination, _, _, _, _, _, mask = line.split()[:8]
        if Path("/sys/class/net", device, "bridge").is_dir() and destination != "00000000":
            size = bin(int(mask, 16)).count("1")
            found.append(ipaddress.IPv4Network((bytes.fromhex(destination)[::-1], size)))
    return found


def read_lines(path: Path) -> list[str]:
    """Read the lines of a file; return none if it does not exist."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
