"""Records a fresh sandbox and finds differences from it later. Runs in the resident, inside the sandbox.

1. A `Baseline` is recorded once, before any command: mounts, sockets, interfaces, shared memory, this process's
   descriptors and limits, and the content of the *places*. A place is anything writable apart from the root file
   system, or a work folder on the root file system. Later, new entries in a place are leftovers, which `cleanup.py`
   removes.
2. The rest of a writable root file system needs no list: a change of a file or folder changes its ctime, which nobody
   can set. So nothing there may be younger than the sandbox.
3. Counters that the kernel never resets (process ids, packets, seconds of CPU) are ignored.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time

from ale_sandbox.resident.privileges import as_user
from ale_sandbox.resident.reset import kernel_state
from ale_sandbox.resident.reset.kernel_state import Mount, read

TYPE_CHECKING = False  # importing it, or `collections.abc`, would cost 3 ms of each start
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Seen = tuple[Any, ...]

EUCLEAN = 117
MOST_FILES = 4000
"""A place that holds more files from the start is not listed; on the root file system it then must not change."""
MOST_BYTES = 1 << 20
"""Files that lie in memory from the start are remembered whole, up to this many bytes, because their ctime does not
show changes."""
WORK = ("/tmp", "/var/tmp", "/dev/shm")
KERNEL = ("proc", "sysfs")
"""File systems in which no files can be made; their settings are read-only, or checked by name below."""
NEEDED = ("/proc/net/protocols", "/proc/net/sockstat", "/proc/sysvipc/shm")  # some kernels in user space lack these
GET_FLAGS = 0x80086601
SETTLE_NS, STEP_NS = 2_000_000, 1_000_000
CLOCK_REALTIME_COARSE = 5


class Unclean(OSError):
    """The sandbox is not as it was: a word for the kind of difference, and the first difference."""

    def __init__(self, what: str, difference: str) -> None:
        super().__init__(EUCLEAN, f"{what}: {difference}")
        self.passes = what in ("processes", "sockets", "memory")
        """Whether waiting may help: the kernel removes these a moment after their process has ended."""


class Place:
    """Where commands can write: a folder (or a mounted file) and its recorded content."""

    def __init__(self, path: str, others: set[str], in_memory: bool) -> None:
        self.path, self.others, self.in_memory = path, others, in_memory
        self.entries = self.look()
        """Relative path -> what must not change; the place itself is ''."""
        self.times: dict[str, tuple[int, int]] = {}
        for name in self.folders():
            found = os.lstat(self.full(name))
            self.times[name] = (found.st_atime_ns, found.st_mtime_ns)

    def full(self, name: str) -> str:
        """Return the full path of an entry."""
        return f"{self.path}/{name}" if name else self.path

    def folders(self) -> list[str]:
        """List the recorded folders, parents first, without mount points."""
        return [
            n
            for n, seen in self.entries.items()
            if stat.S_ISDIR(seen[0]) and (not n or self.full(n) not in self.others)
        ]

    def children(self) -> dict[str, set[str]]:
        """Return the recorded names in each folder."""
        found: dict[str, set[str]] = {}
        for name in self.entries.keys() - {""}:
            folder, _, own = name.rpartition("/")
            found.setdefault(folder, set()).add(own)
        return found

    def look(self) -> dict[str, Seen]:
        """Record the present content. Raises `OSError` if that is more than can be remembered."""
        found: dict[str, Seen] = {}
        left, room = [""], MOST_BYTES
        while left:
            name = left.pop()
            path = self.full(name)
            seen = os.lstat(path)
            found[name], room = self.record_entry(path, seen, room)
            if stat.S_ISDIR(seen.st_mode) and (not name or path not in self.others):
                left += [f"{name}/{entry}" if name else entry for entry in os.listdir(path)]
            if len(found) + len(left) > MOST_FILES:
                raise OSError(EUCLEAN, f"{self.path} holds more than {MOST_FILES} files")
        return found

    def record_entry(self, path: str, found: os.stat_result, room: int) -> tuple[Seen, int]:
        """Record what must not change in one entry; also return how many bytes may still be remembered."""
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


def record(folders: list[str]) -> Baseline | OSError:
    """Record the baseline of a fresh sandbox, or return why that is impossible."""
    try:
        return Baseline(folders)
    except OSError as error:
        return error


class Baseline:
    """A sandbox before anything ran in it. Raises `OSError` if a used one could not be distinguished from it later."""

    def __init__(self, folders: list[str]) -> None:
        for path in NEEDED:
            if not os.access(path, os.R_OK):
                raise OSError(EUCLEAN, f"the sandbox has no {path}, which the check needs")
        lines = read("/proc/self/mountinfo").splitlines()
        self.mounts = {mount.path: mount for mount in map(Mount, lines)}
        if any(self.mounts[folder].kind == "overlay" for folder in folders if folder in self.mounts):
            raise OSError(EUCLEAN, "it was started from a snapshot, which may hold any number of files")
        kinds = {mount.kind for mount in self.mounts.values()}
        if "\tmqueue\n" in os.fsdecode(read("/proc/filesystems")) and "mqueue" not in kinds:
            raise OSError(EUCLEAN, "message queues cannot be checked: no mqueue file system is mounted")
        root = self.mounts["/"]
        if root.writable and root.kind == "tmpfs":
            raise OSError(EUCLEAN, "changes on a root file system in memory cannot be detected")
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
        self.facts, self.sockets = self.look(), kernel_state.count_sockets()
        self.clock, _ = clock()
        self.since = time.time_ns()
        # File times come from a clock that ticks every few ms: later changes must be younger than this moment.
        while root.writable and time.clock_gettime_ns(CLOCK_REALTIME_COARSE) < self.since + SETTLE_NS:
            time.sleep(0.001)

    def can_write(self, mount: Mount) -> bool:
        """Return whether files could be left on a mount."""
        return mount.writable and mount.path != "/" and mount.kind not in KERNEL

    def place(self, path: str) -> Place:
        """Record a place as it is now."""
        in_memory = self.mounts[path].kind == "tmpfs" if path in self.mounts else False
        return Place(path, {other for other in self.mounts if other != path}, in_memory)

    def is_on_root(self, path: str) -> bool:
        """Return whether a path is a folder of the root file system (not / itself) and in no other place."""
        if path == "/" or any(path == p.path or path.startswith(f"{p.path}/") for p in self.places):
            return False
        return os.path.isdir(path) and os.stat(path).st_dev == self.root_device

    def look(self) -> dict[str, frozenset[str]]:
        """Record all but the files, including this process's state, which an agent of the same user could change."""
        return {
            "mounts": frozenset(os.fsdecode(read("/proc/self/mountinfo")).splitlines()),
            "sockets": frozenset(kernel_state.sockets()),
            "connections": frozenset(kernel_state.ended_connections()),
            "network": frozenset(kernel_state.interfaces()),
            "memory": frozenset(kernel_state.shared_memory(self.mounts.values())),
            "keys": frozenset(kernel_state.keys()),
            "resident": frozenset(kernel_state.own_state()),
        }

    def difference(self) -> Unclean | None:
        """Return the first difference; `younger_files` checks the rest of the root file system."""
        strangers = [f"process {pid} ({command})" for pid, command in kernel_state.processes() if pid != os.getpid()]
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
                return Unclean(what, f"{(more or ['nothing'])[0]} instead of {(less or ['nothing'])[0]}")
        if (count := kernel_state.count_sockets()) > self.sockets:  # fewer are fine: some go only after a while
            return Unclean("sockets", f"{count} in all instead of {self.sockets}")
        return None

    def younger_files(self) -> Iterator[float]:
        """Search a writable root file system for changes. Raises `Unclean`; yields from time to time."""
        if not self.root_device:
            return
        if clock()[1] < self.clock - STEP_NS:
            raise Unclean("files", "the machine's clock was set back, so changes cannot be detected")
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
                        changed, left = entry.path, []  # an entry in it may say more
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    if changed == entry.path:
                        break
            if changed and not left:
                break
        if changed:
            raise Unclean("files", f"{printable(changed)} was changed")


def clock() -> tuple[int, int]:
    """Return by how many ns the time of day is ahead of the clock that nobody can set: lower and upper bound."""
    while True:
        before, now, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if after - before < STEP_NS // 2:
            return now - after, now - before


def bring_up(path: str) -> None:
    """Make the kernel copy a folder into the writable layer now; else the first new file in it would do so and change
    its parent."""
    found = os.stat(path)
    as_user(found.st_uid, found.st_gid, os.utime, path, ns=(found.st_atime_ns, found.st_mtime_ns))


def printable(path: str) -> str:
    """Make a path, which an agent chose, safe to print."""
    return ascii(path if len(path) < 200 else path[:200] + "...")


def attributes(path: str) -> tuple[tuple[str, bytes], ...]:
    """Return a folder's extended attributes, which include access lists."""
    try:
        return tuple((name, os.getxattr(path, name)) for name in sorted(os.listxattr(path)))
    except OSError:
        return ()


def flags(path: str) -> int:
    """Return a folder's flags, as `lsattr` shows them; 0 if the file system has none."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return int.from_bytes(fcntl.ioctl(fd, GET_FLAGS, bytes(8)), sys.byteorder)
    except OSError:
        return 0
    finally:
        os.close(fd)
