"""What a fresh sandbox looks like, and in what it differs from that later. Used by the resident, inside the sandbox.

1. A `Fresh` is taken once, before any command: mounts, sockets, interfaces, shared memory, this process's own descriptors
   and limits, and all that lies in the *places*: whatever can be written to apart from the root file system, and the
   folders of that one in which work is done. What is in a place and was not there, somebody left (`clean.py` removes it).
2. The rest of a root file system that can be written to needs no list: whoever changes a file or what a folder holds
   changes its ctime, and nobody can set that. So nothing there may be younger than the sandbox.
3. Counters that the kernel never sets back (process ids, packets, seconds of CPU) are not looked at.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time

from ale_resident.inside import sight
from ale_resident.inside.rights import as_user
from ale_resident.inside.sight import read

TYPE_CHECKING = False  # importing it, or `collections.abc`, would cost 3 ms of each start
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Seen = tuple[Any, ...]

EUCLEAN = 117
MOST_FILES = 4000
"""A place that holds more from the start is not listed: on the root file system nothing in it may change then."""
MOST_BYTES = 1 << 20
"""Files in memory that are there from the start are remembered whole, up to this many bytes: their ctime says nothing."""
WORK = ("/tmp", "/var/tmp", "/dev/shm")
KERNEL = ("proc", "sysfs")
"""File systems in which nothing can be made; what can be set there is read-only, or asked for by name below."""
NEEDED = ("/proc/net/protocols", "/proc/net/sockstat", "/proc/sysvipc/shm")  # some kernels in user space have none
GET_FLAGS = 0x80086601
SETTLE_NS, STEP_NS = 2_000_000, 1_000_000
CLOCK_REALTIME_COARSE = 5


class Unclean(OSError):
    """What is not as it was: a word for the kind of thing, and the first difference."""

    def __init__(self, what: str, difference: str) -> None:
        super().__init__(EUCLEAN, f"{what}: {difference}")
        self.passes = what in ("processes", "sockets", "memory")
        """Whether it may pass by itself: the kernel takes these away a moment after their process."""


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


class Place:
    """Where commands can write: a folder (or a file that is mounted) and what was in it."""

    def __init__(self, path: str, others: set[str], in_memory: bool) -> None:
        self.path, self.others, self.in_memory = path, others, in_memory
        self.entries = self.look()
        """Relative path -> what must stay as it is; the place itself is ''."""
        self.times: dict[str, tuple[int, int]] = {}
        for name in self.folders():
            found = os.lstat(self.full(name))
            self.times[name] = (found.st_atime_ns, found.st_mtime_ns)

    def full(self, name: str) -> str:
        """The whole path of an entry."""
        return f"{self.path}/{name}" if name else self.path

    def folders(self) -> list[str]:
        """The folders that were there, each after the one it is in; not those in which something else is mounted."""
        return [
            n
            for n, seen in self.entries.items()
            if stat.S_ISDIR(seen[0]) and (not n or self.full(n) not in self.others)
        ]

    def children(self) -> dict[str, set[str]]:
        """The names that were in each folder."""
        found: dict[str, set[str]] = {}
        for name in self.entries.keys() - {""}:
            folder, _, own = name.rpartition("/")
            found.setdefault(folder, set()).add(own)
        return found

    def look(self) -> dict[str, Seen]:
        """What is there now. Raises `OSError` where that is more than can be remembered."""
        found: dict[str, Seen] = {}
        left, room = [""], MOST_BYTES
        while left:
            name = left.pop()
            path = self.full(name)
            seen = os.lstat(path)
            found[name], room = self.seen(path, seen, room)
            if stat.S_ISDIR(seen.st_mode) and (not name or path not in self.others):
                left += [f"{name}/{entry}" if name else entry for entry in os.listdir(path)]
            if len(found) + len(left) > MOST_FILES:
                raise OSError(EUCLEAN, f"{self.path} holds more than {MOST_FILES} files")
        return found

    def seen(self, path: str, found: os.stat_result, room: int) -> tuple[Seen, int]:
        """What must stay as it is of one entry, and the bytes that may still be remembered."""
        owner = (found.st_mode, found.st_uid, found.st_gid)
        if stat.S_ISDIR(found.st_mode):
            return (*owner, attributes(path), flags(path)), room
        if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
            return (*owner, found.st_rdev), room
        held: int | bytes = found.st_size
        if self.in_memory and stat.S_ISREG(found.st_mode):
            room -= found.st_size
            if room < 0:
                raise OSError(EUCLEAN, f"{self.path} holds more than {MOST_BYTES} bytes")
            held = read(path)
        return (*owner, found.st_ctime_ns, held), room


def taken(folders: list[str]) -> Fresh | OSError:
    """A sandbox that is fresh now, as it is; or why that cannot be told."""
    try:
        return Fresh(folders)
    except OSError as error:
        return error


class Fresh:
    """A sandbox as it was before anything ran. Raises `OSError` where it cannot be told apart from a used one."""

    def __init__(self, folders: list[str]) -> None:
        for path in NEEDED:
            if not os.access(path, os.R_OK):
                raise OSError(EUCLEAN, f"there is no {path} in here to look at")
        lines = read("/proc/self/mountinfo").splitlines()
        self.mounts = {mount.path: mount for mount in map(Mount, lines)}
        if any(self.mounts[folder].kind == "overlay" for folder in folders if folder in self.mounts):
            raise OSError(EUCLEAN, "it was started from a snapshot, which may hold any number of files")
        kinds = {mount.kind for mount in self.mounts.values()}
        if "\tmqueue\n" in os.fsdecode(read("/proc/filesystems")) and "mqueue" not in kinds:
            raise OSError(EUCLEAN, "message queues cannot be looked at: no mqueue file system is mounted")
        root = self.mounts["/"]
        if root.writable and root.kind == "tmpfs":
            raise OSError(EUCLEAN, "what is changed on a root file system in memory cannot be told")
        self.root_device = os.stat("/").st_dev if root.writable else 0
        self.places = [self.place(mount.path) for mount in self.mounts.values() if self.can_write(mount)]
        for path in dict.fromkeys(map(os.path.realpath, (*folders, *WORK)) if root.writable else ()):
            if self.is_on_root(path):
                try:
                    bring_up(path)
                    self.places.append(self.place(path))
                except OSError as error:
                    if error.errno != EUCLEAN:
                        raise
        self.facts, self.sockets = self.look(), sight.sockets_in_all()
        self.clock, _ = clock()
        self.since = time.time_ns()
        # File times are taken from a clock that ticks every few ms: what happens next must be younger than this moment.
        while root.writable and time.clock_gettime_ns(CLOCK_REALTIME_COARSE) < self.since + SETTLE_NS:
            time.sleep(0.001)

    def can_write(self, mount: Mount) -> bool:
        """Whether something could be left there."""
        return mount.writable and mount.path != "/" and mount.kind not in KERNEL

    def place(self, path: str) -> Place:
        """A place as it is now."""
        in_memory = self.mounts[path].kind == "tmpfs" if path in self.mounts else False
        return Place(path, {other for other in self.mounts if other != path}, in_memory)

    def is_on_root(self, path: str) -> bool:
        """Whether it is a folder of the root file system, not the whole of it, and in no other place."""
        if path == "/" or any(path == p.path or path.startswith(f"{p.path}/") for p in self.places):
            return False
        return os.path.isdir(path) and os.stat(path).st_dev == self.root_device

    def look(self) -> dict[str, frozenset[str]]:
        """All but the files, by name; this process's own state too, which an agent of the same user could change."""
        return {
            "mounts": frozenset(os.fsdecode(read("/proc/self/mountinfo")).splitlines()),
            "sockets": frozenset(sight.sockets()),
            "connections": frozenset(sight.ended_connections()),
            "network": frozenset(sight.interfaces()),
            "memory": frozenset(sight.shared_memory(self.mounts.values())),
            "keys": frozenset(sight.keys()),
            "resident": frozenset(sight.own_state()),
        }

    def difference(self) -> Unclean | None:
        """The first thing that is not as it was; the rest of the root file system is `younger_files`."""
        strangers = [f"process {pid} ({command})" for pid, command in sight.processes() if pid != os.getpid()]
        if strangers:
            return Unclean("processes", strangers[0])
        for place in self.places:
            entries = place.look()
            for name in entries.keys() | place.entries.keys():
                if entries.get(name) != place.entries.get(name):
                    how = "is left" if name not in place.entries else "was changed" if name in entries else "is gone"
                    return Unclean("files", f"{printable(place.full(name))} {how}")
        for what, now in self.look().items():
            then = self.facts[what]
            if now != then:
                more, less = sorted(now - then)[:1], sorted(then - now)[:1]
                return Unclean(what, f"{(more or ['nothing'])[0]}, and not {(less or ['nothing'])[0]}")
        if (count := sight.sockets_in_all()) > self.sockets:  # less may well be: some die only after a while
            return Unclean("sockets", f"{count} in all, and not {self.sockets}")
        return None

    def younger_files(self) -> Iterator[float]:
        """Look through the root file system, if it can be written to. Raises `Unclean`; yields now and then."""
        if not self.root_device:
            return
        if clock()[1] < self.clock - STEP_NS:
            raise Unclean("files", "the machine's clock was set back, so what was changed cannot be told")
        apart = {place.path for place in self.places} | self.mounts.keys()
        changed = "/" if os.lstat("/").st_ctime_ns > self.since else ""
        left = ["/"]
        while left:
            yield 0.0
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    if entry.path in apart:
                        continue
                    if entry.stat(follow_symlinks=False).st_ctime_ns > self.since:
                        changed, left = entry.path, []  # what is in it may say more
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    if changed == entry.path:
                        break
            if changed and not left:
                break
        if changed:
            raise Unclean("files", f"{printable(changed)} was changed")


def clock() -> tuple[int, int]:
    """How far the time of day is ahead of the clock that nobody sets, in ns: at least, and at most."""
    while True:
        before, now, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if after - before < STEP_NS // 2:
            return now - after, now - before


def bring_up(path: str) -> None:
    """Have a folder copied into the layer that can be written to, before the first file in it does that to the one above."""
    found = os.stat(path)
    as_user(found.st_uid, found.st_gid, os.utime, path, ns=(found.st_atime_ns, found.st_mtime_ns))


def printable(path: str) -> str:
    """A path, for a sentence: it is the agent's, and may hold anything."""
    return ascii(path if len(path) < 200 else path[:200] + "...")


def attributes(path: str) -> tuple[tuple[str, bytes], ...]:
    """A folder's extended attributes; access lists are some."""
    try:
        return tuple((name, os.getxattr(path, name)) for name in sorted(os.listxattr(path)))
    except OSError:
        return ()


def flags(path: str) -> int:
    """A folder's flags, as `lsattr` shows them; 0 where the file system has none."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return int.from_bytes(fcntl.ioctl(fd, GET_FLAGS, bytes(8)), sys.byteorder)
    except OSError:
        return 0
    finally:
        os.close(fd)
