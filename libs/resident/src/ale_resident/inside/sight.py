"""What can be seen of a sandbox apart from its files, a text for each thing. Used by the resident, inside the sandbox."""

from __future__ import annotations

import os
import resource

TYPE_CHECKING = False  # importing it, or `collections.abc`, would cost 3 ms of each start
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ale_resident.inside.fresh import Mount


def read(path: str) -> bytes:
    """A file of the kernel's, or a small one; nothing where it is not there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return b""
    try:
        data = b""
        while piece := os.read(fd, 1 << 16):
            data += piece
        return data
    finally:
        os.close(fd)


def processes() -> list[tuple[int, str]]:
    """Every process that there is, dead ones that nobody collected too."""
    found = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [(pid, ascii(os.fsdecode(read(f"/proc/{pid}/comm").strip()))) for pid in found]


def sockets() -> Iterator[str]:
    """How many there are of each protocol, also of those that outlive their process for a moment."""
    for line in read("/proc/net/protocols").splitlines()[1:]:
        name, _, count = os.fsdecode(line).split()[:3]
        yield f"{count} {name}"


def sockets_in_all() -> int:
    """How many there are, of whatever protocol."""
    words = read("/proc/net/sockstat").split()
    return int(words[words.index(b"used") + 1]) if b"used" in words else 0


def ended_connections() -> Iterator[str]:
    """TCP connections whose ports the kernel holds back for a minute after their end."""
    words = os.fsdecode(read("/proc/net/sockstat")).split()
    if "tw" in words:
        yield f"{words[words.index('tw') + 1]} closed TCP connections"


def keys() -> list[str]:
    """The kernel's keys, where they can be seen; system calls that make some are refused where there is a filter."""
    try:
        return os.fsdecode(read("/proc/keys")).splitlines()
    except PermissionError:
        return []


def interfaces() -> Iterator[str]:
    """Interfaces, addresses, routes."""
    for line in read("/proc/net/dev").splitlines()[2:]:
        yield os.fsdecode(line.split(b":")[0].strip())
    for path in ("/proc/net/if_inet6", "/proc/net/route", "/proc/net/fib_trie"):
        yield os.fsdecode(read(path))


def shared_memory(mounts: Iterable[Mount]) -> Iterator[str]:
    """System V memory, queues and semaphores; what file systems in memory hold, also of files that have no name."""
    for kind in ("shm", "msg", "sem"):
        for line in read(f"/proc/sysvipc/{kind}").splitlines()[1:]:
            yield f"{kind} {os.fsdecode(line.split()[1])}"
    for mount in mounts:
        if mount.kind == "tmpfs" and mount.writable and mount.root == b"/":
            held = os.statvfs(mount.path)
            yield f"{mount.path}: {held.f_blocks - held.f_bfree} blocks, {held.f_files - held.f_ffree} files"


def own_state() -> Iterator[str]:
    """Descriptors, limits and priorities of this process."""
    for name in os.listdir("/proc/self/fd"):
        try:
            yield f"descriptor {name} {os.readlink(f'/proc/self/fd/{name}')}"
        except FileNotFoundError:
            continue  # the one with which this folder was listed
    for kind in range(16):
        yield f"limit {kind} {resource.getrlimit(kind)}"
    yield f"cpus {sorted(os.sched_getaffinity(0))}"
    yield f"priority {os.getpriority(os.PRIO_PROCESS, 0)} {os.sched_getscheduler(0)} {read('/proc/self/oom_score_adj')!r}"
    yield f"host {os.uname().nodename}"
