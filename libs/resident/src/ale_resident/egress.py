"""The host's end of a sandbox's way out: a Unix socket, the *gate*, behind which this process decides what is let through.

1. A connection of the sandbox's relay begins with one line: `endpoint`, `connect HOST PORT` or `refused`. The gate looks
   at the policy itself; what is inside the sandbox may claim what it likes.
2. Names are resolved out here, and the address that was looked at is the one that is dialled. A name never leads to this
   machine, to a link-local (metadata) address or to the containers beside it, and a pattern (`*.example.org`, `*`)
   leads to public addresses alone; an address leads where it says, because the user wrote it down.
3. Whatever is refused, out here or in there, becomes a `Refusal`.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ale.errors import ConfigError
from ale.specs.driver import DriverContext
from ale.specs.sandbox import ENDPOINT_PORT, Sandbox, SandboxSpec, host_and_port
from ale_resident.listener import listening
from ale_resident.owner import remove_folder

log = logging.getLogger("ale.sandbox.egress")
PIECE_BYTES = 1 << 16
LINE_BYTES = 400
LINE_TIMEOUT_S, DIAL_TIMEOUT_S = 10.0, 20.0
MOST_CONNECTIONS = 512
MOST_REFUSALS = 1000
"""Refusals of one sandbox that are told of one by one; of more, only how many there were."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Refusal:
    """An attempt that was not let through."""

    protocol: str
    """`tcp`, `udp`, `icmp`, `name` (a DNS question), `endpoint`, or `other`: more than could be told apart."""
    host: str
    port: int
    count: int
    reason: str

    def __str__(self) -> str:
        where = f"{self.host}:{self.port}" if self.protocol in ("tcp", "udp") else self.host
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.protocol} {where}{times}: {self.reason}"


def network_plan(spec: SandboxSpec) -> list[str]:
    """What the relay inside shall listen for (see `ale_resident.inside.network`), a line each; empty where there is no relay."""
    if spec.network == "none":
        return []
    plan = [] if spec.endpoint is None else [f"endpoint - {ENDPOINT_PORT}"]
    if spec.network == "allow":
        plan += ["host {} {}".format(*host_and_port(entry)) for entry in spec.allow]
    return plan


def check_policy(spec: SandboxSpec) -> None:
    """Refuse what says nothing or contradicts itself. Raises `ConfigError`."""
    if spec.allow and spec.network != "allow":
        raise ConfigError(
            f"needs.allow names hosts, and needs.network is {spec.network}; set needs.network to allow, or leave needs.allow out."
        )
    if spec.network == "allow" and not spec.allow:
        raise ConfigError("needs.network is allow, and needs.allow names no host; name some, such as pypi.org:443.")
    if spec.network == "endpoint-only" and spec.endpoint is None:
        raise ConfigError(
            "The network policy endpoint-only lets the model endpoint through, and none was named (SandboxSpec.endpoint)."
        )
    if spec.endpoint is not None:
        endpoint_address(spec.endpoint)


def endpoint_address(endpoint: str) -> str | tuple[str, int]:
    """Where the model endpoint listens: the path of a Unix socket, or host and port. Raises `ConfigError`."""
    parts = urlsplit(endpoint)
    with suppress(ValueError):
        if parts.scheme == "unix" and parts.path.startswith("/"):
            return parts.path
        if parts.scheme == "http" and parts.hostname and parts.port:
            return parts.hostname, parts.port
    raise ConfigError(
        f"The model endpoint {endpoint!r} is neither http://HOST:PORT nor unix:///PATH (SandboxSpec.endpoint)."
    )


class Gate:
    """The gate of one sandbox, in a folder of its own. `refused` is called for each refusal."""

    def __init__(self, spec: SandboxSpec, folder: Path) -> None:
        self.folder = folder
        self.endpoint = None if spec.endpoint is None else endpoint_address(spec.endpoint)
        self.allow = [host_and_port(entry) for entry in spec.allow] if spec.network == "allow" else []
        self.refused: Callable[[Refusal], None] = lambda _: None
        self.bytes_in = self.bytes_out = 0
        """What the sandbox received and sent."""
        self.told = self.untold = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def opened(cls, spec: SandboxSpec, folder: Path) -> Gate | None:
        """The gate of a sandbox to be, listening in a new folder; None for one that needs none."""
        if not network_plan(spec):
            return None
        gate = cls(spec, folder)
        gate._server = await asyncio.start_unix_server(gate._serve, sock=gate._socket(), limit=PIECE_BYTES)
        return gate

    def _socket(self) -> socket.socket:
        # Whoever can see the socket may connect: that is the sandbox, for its folder is mounted there and nowhere else.
        self.folder.mkdir(mode=0o755)
        return listening(self.folder / "socket", 0o666)

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
        if self.untold:
            self.refused(Refusal("other", "*", 0, self.untold, "more refusals than are told of one by one"))
            self.untold = 0

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
            pass  # whichever end it was, the connection is over
        except asyncio.CancelledError:
            pass  # by `close`, which waits for this; asyncio's streams would report it as an error
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
                self._tell(Refusal("tcp", words[1], int(words[2]), 1, str(error.strerror)))
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
            raise ValueError("too long a line")
        return line.decode("ascii").split()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, outward: bool) -> None:
        writer.transport.set_write_buffer_limits(
            0
        )  # `drain` waits until all is with the kernel: nothing is lost at the end
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
        """Connect to where a line says, if that is allowed. Raises `PermissionError` with the reason, or `OSError`."""
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
        """The addresses that may be dialled for a host. Raises `PermissionError` with the reason where there are none."""
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
        """Whether an entry names the host, and whether a pattern fits it."""
        hosts = [allowed for allowed, its_port in self.allow if its_port == port]
        fits = any(allowed.startswith("*") and host.endswith(allowed[1:]) for allowed in hosts)
        return host in hosts, fits

    def _may_be(self, address: Address, by_name: bool) -> bool:
        """Whether a name, or only a pattern, may lead to an address."""
        plain = getattr(address, "ipv4_mapped", None) or address
        if plain.is_loopback or plain.is_link_local or plain.is_multicast or plain.is_unspecified or is_own(str(plain)):
            return False
        if any(plain in network for network in container_networks()):
            return False
        return by_name or bool(plain.is_global)

    # --- what is refused

    def _take_report(self, words: list[str]) -> None:
        if len(words) == 4 and words[2].isdigit() and words[3].isdigit():
            protocol, host, port, count = words[0][:12], words[1], int(words[2]), int(words[3])
            reason = "the name is not among the allowed hosts" if protocol == "name" else "nothing there is allowed"
            self._tell(Refusal(protocol, host, port, count, reason))

    def _tell(self, refusal: Refusal) -> None:
        if self.told < MOST_REFUSALS:
            self.told += 1
            self.refused(refusal)
        else:
            self.untold += refusal.count


def report(sandbox: Sandbox, context: DriverContext, refusal: Refusal) -> None:
    """Put a refusal where a run's events go, and tell the observers."""
    labels = {**context.labels, **sandbox.spec.labels}
    found = asdict(refusal)
    log.info("sandbox %s: refused %s", sandbox.id, refusal)
    context.event("network_refused", sandbox=sandbox.id, **found, labels=labels)
    if context.hooks is not None:
        context.hooks.call("ale_network_refused", sandbox_id=sandbox.id, labels=labels, **found)


def as_address(host: str) -> Address | None:
    """The address that a host is; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_own(address: str) -> bool:
    """Whether an address belongs to this machine: then, and only then, a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((address, 0))
        except OSError:
            return False
    return True


def container_networks() -> list[ipaddress.IPv4Network]:
    """The networks of this machine's bridges, behind which containers live."""
    found = []
    for line in read_lines(Path("/proc/net/route"))[1:]:
        device, destination, _, _, _, _, _, mask = line.split()[:8]
        if Path("/sys/class/net", device, "bridge").is_dir() and destination != "00000000":
            size = bin(int(mask, 16)).count("1")
            found.append(ipaddress.IPv4Network((bytes.fromhex(destination)[::-1], size)))
    return found


def read_lines(path: Path) -> list[str]:
    """The lines of a file; none where it is not there."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
