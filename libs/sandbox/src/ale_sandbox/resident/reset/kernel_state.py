"""Describes a sandbox's state apart from its files, one text per item. Runs in the resident, inside the sandbox."""

from __future__ import annotations

import os
import resource

TYPE_CHECKING = False  # importing it, or `collections.abc`, would cost 3 ms of each start
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def read(path: str) -> bytes:
    """Read a file of the kernel, or a small one; return nothing if it does not exist."""
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


class Mount:
    """A line of `/proc/self/mountinfo`."""

    def __init__(self, line: bytes) -> None:
        fields = line.split(b" ")
        self.root, path, options = fields[3], fields[4], fields[5].split(b",")
        for code, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
            path = path.replace(code, byte)
        self.path = os.fsdecode(path)
        self.writable = b"rw" in options
        self.kind = os.fsdecode(fields[fields.index(b"-", 6) + 1])


def processes() -> list[tuple[int, str]]:
    """List every process, including zombies."""
    found = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [(pid, ascii(os.fsdecode(read(f"/proc/{pid}/comm").strip()))) for pid in found]


def sockets() -> Iterator[str]:
    """Count the sockets of each protocol, including those that outlive their process for a moment."""
    for line in read("/proc/net/protocols").splitlines()[1:]:
        name, _, count = os.fsdecode(line).split()[:3]
        yield f"{count} {name}"


def count_sockets() -> int:
    """Count the sockets of all protocols."""
    words = read("/proc/net/sockstat").split()
    return int(words[words.index(b"used") + 1]) if b"used" in words else 0


def ended_connections() -> Iterator[str]:
    """Count the closed TCP connections whose ports the kernel reserves for another minute."""
    words = os.fsdecode(read("/proc/net/sockstat")).split()
    if "tw" in words:
        yield f"{words[words.index('tw') + 1]} closed TCP connections"


def keys() -> list[str]:
    """List the kernel's keys, if visible; a filter refuses the system calls that make keys."""
    try:
        return os.fsdecode(read("/proc/keys")).splitlines()
    except PermissionError:
        return []


def interfaces() -> Iterator[str]:
    """List interfaces, addresses and routes."""
    for line in read("/proc/net/dev").splitlines()[2:]:
        yield os.fsdecode(line.split(b":")[0].strip())
    for path in ("/proc/net/if_inet6", "/proc/net/route", "/proc/net/fib_trie"):
        yield os.fsdecode(read(path))


def shared_memory(mounts: Iterable[Mount]) -> Iterator[str]:
    """List System V memory, queues and semaphores, and the usage of file systems in memory, unnamed files included."""
    for kind in ("shm", "msg", "sem"):
        for line in read(f"/proc/sysvipc/{kind}").splitlines()[1:]:
            yield f"{kind} {os.fsdecode(line.split()[1])}"
    for mount in mounts:
        if mount.kind == "tmpfs" and mount.writable and mount.root == b"/":
            held = os.statvfs(mount.path)
            yield f"{mount.path}: {held.f_blocks - held.f_bfree} blocks, {held.f_files - held.f_ffree} files"


def own_state() -> Iterator[str]:
    """List descriptors, limits and priorities of this process."""
    for name in os.listdir("/proc/self/fd"):
        try:
            yield f"descriptor {name} {os.readlink(f'/proc/self/fd/{name}')}"
        except FileNotFoundError:
            continue  # the descriptor with which this folder is listed
    for kind in range(16):
        yield f"limit {kind} {resource.getrlimit(kind)}"
    yield f"cpus {sorted(os.sched_getaffinity(0))}"
    scores = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), read("/proc/self/oom_score_adj")
    yield f"priority {scores}"
    yield f"host {os.uname().nodename}"
