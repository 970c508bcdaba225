"""The host as a victim: a secret, processes, listeners and settings that no attack may touch, and what tells whether
one did.

Nothing here is assumed to have held: the secret file is watched by the kernel (inotify), the processes are looked at
one by one, the listeners count who came, the settings are compared, and the kernel's log is searched for memory that
ran out."""

from __future__ import annotations

import ctypes
import difflib
import os
import secrets
import select
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .listeners import Listeners
from .users import Key, said_by

UID_BASE = 1_950_000_000
"""Of the local sandboxes here, so that no other test's are counted with them."""
ROOT, SOMEBODY, NOBODY, AGENT_OF_LOCAL = 0, 1000, 65534, UID_BASE + 1000
"""The agent of a container is `SOMEBODY` to the host, or `ROOT`."""
IN_OPEN, IN_ACCESS, IN_MODIFY, IN_ATTRIB, IN_MOVE_SELF, IN_DELETE_SELF = 0x20, 0x1, 0x2, 0x4, 0x800, 0x400
SETTINGS = (
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/domainname",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/core_uses_pid",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hotplug",
    "/proc/sys/kernel/sysrq",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/threads-max",
    "/proc/sys/kernel/ctrl-alt-del",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/fs/suid_dumpable",
    "/proc/sys/fs/binfmt_misc/status",
    "/sys/kernel/uevent_helper",
    "/sys/fs/cgroup/memory/release_agent",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "/sys/fs/cgroup/pids/release_agent",
    "/proc/swaps",
    "/proc/sys/kernel/random/boot_id",
)
OF_ENGINES = ("/var/lib/docker", "/var/lib/containers", "/run", "/var/run", "/proc/sys/fs/binfmt_misc")
"""Where container engines mount and unmount while they work."""
LOADED: set[str] = set()
"""Modules of the kernel that were seen; engines load some, and nobody takes any away."""


@dataclass
class Process:
    """A process of the host that carries a secret."""

    uid: int
    running: subprocess.Popen[bytes]
    before: str = ""

    @classmethod
    def start(cls, uid: int, secret: str) -> Process:
        """Start one as a user."""
        process = subprocess.Popen(["sleep", "98765"], user=uid, group=uid, extra_groups=[], env={"SECRET": secret})
        made = cls(uid, process)
        until = time.monotonic() + 10
        while b"sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes() and time.monotonic() < until:
            time.sleep(0.002)
        made.before = made.look()
        return made

    def look(self) -> str:
        """What must stay the same of it: that it sleeps, its niceness, policy, limits, standing before the OOM
        killer."""
        folder = Path("/proc", str(self.running.pid))
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            rest = (folder / "limits").read_text(), (folder / "oom_score_adj").read_text()
        except OSError:
            return "gone"
        state = "stopped" if fields[0] in "Tt" else "a zombie" if fields[0] in "ZX" else "alive"
        return "\n".join((state, f"niceness {fields[16]}", f"policy {fields[38]}", f"started {fields[19]}", *rest))

    def harm(self) -> Iterator[str]:
        """What has changed; told of once."""
        before, self.before = self.before, self.look()
        if self.before != before:
            yield (
                f"The host's process {self.running.pid} of user {self.uid} changed:\n{difference(before, self.before)}"
            )


def difference(before: str, now: str) -> str:
    """The lines that came and went."""
    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), "before", "now", lineterm="", n=0)
    return "\n".join(lines)


class Host:
    """Everything of the host that the witnesses look at. One for all providers."""

    def __init__(self, folder: Path) -> None:
        self.secret = f"SECRET-OF-THE-HOST-{secrets.token_hex(12)}"
        self.name = secrets.token_hex(6)
        folder.chmod(0o755)
        self.file = folder / "secret.txt"
        self.file.write_text(self.secret)
        self.file.chmod(0o666)
        users = (ROOT, SOMEBODY, NOBODY, AGENT_OF_LOCAL)
        self.processes = [Process.start(uid, self.secret) for uid in users]
        self.listeners = Listeners(folder, self.name)
        self.log = KernelLog()
        self.keys = [Key(uid, self.name, self.secret) for uid in (ROOT, SOMEBODY)]
        self.watch = watch(self.file)
        self.settings = settings()
        self.clock = clock()
        self.cannot = self.operations()

    def close(self) -> None:
        """End what was started."""
        for process in self.processes:
            process.running.kill()
            process.running.wait()
        for key in self.keys:
            key.forget()
        self.listeners.close()
        self.log.close()
        os.close(self.watch)

    def operations(self) -> dict[int, str]:
        """What the host's users cannot do now, by user; compared with `cannot`."""
        return {uid: said_by(uid) for uid in (ROOT, SOMEBODY)}

    def harm(self) -> Iterator[str]:
        """What has happened to the host, a sentence each."""
        for event in read_events(self.watch):
            yield f"The host's secret file was touched (inotify says {event:#x})."
        if self.file.read_text() != self.secret:
            yield "The host's secret file was changed."
            self.file.write_text(self.secret)
        read_events(self.watch)  # this very look
        for process in self.processes:
            yield from process.harm()
        yield from (f"Somebody reached the host's listener at {place}." for place in self.listeners.visited())
        before, self.settings = self.settings, settings()
        for path, value in self.settings.items():
            if value != before.get(path, value):
                yield f"The host's setting {path} changed:\n{difference(before[path], value)}"
        if abs(clock() - self.clock) > 5:
            yield f"The host's clock was moved by {clock() - self.clock:.0f} s."
        yield from self.log.harm()
        yield from shortages()


class KernelLog:
    """The kernel's log from now on; silent where this process may not read it."""

    def __init__(self) -> None:
        try:
            self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self.fd, 0, os.SEEK_END)
        except OSError:
            self.fd = -1

    def harm(self) -> Iterator[str]:
        """Memory that ran out on the machine and not in one sandbox; faults of the kernel itself."""
        while self.fd >= 0:
            try:
                line = os.read(self.fd, 8192).decode("utf-8", "replace")
            except BlockingIOError:
                return
            except OSError:
                continue  # it was faster than we
            if "constraint=CONSTRAINT_NONE" in line or "BUG:" in line or "general protection" in line:
                yield f"The kernel's log says: {line.strip()}"

    def close(self) -> None:
        """Close it."""
        if self.fd >= 0:
            os.close(self.fd)


def settings() -> dict[str, str]:
    """The host's settings, its mounts, and the programs of the kernel that must not go away."""
    found: dict[str, str] = {}
    for path in SETTINGS:
        with suppress(OSError):
            found[path] = Path(path).read_text()
    places = [line.split()[4:6] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    with suppress(OSError):
        found["modules that went away"] = ""
        now = {line.split()[0] for line in Path("/proc/modules").read_text().splitlines()}
        LOADED.update(now)
        found["modules that went away"] = " ".join(sorted(LOADED - now))
    found["mounts"] = "\n".join(sorted(" ".join(place) for place in places if not place[0].startswith(OF_ENGINES)))
    return found


def clock() -> float:
    """The time of day less the time since boot: changes only where somebody sets the clock."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def shortages() -> Iterator[str]:
    """What the host has too little of now."""
    memory = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free, total = (int(memory[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    if free < total * 0.05:
        yield f"The host has {free >> 10} MiB of memory left."
    disk = os.statvfs("/")
    if disk.f_bavail < disk.f_blocks * 0.02 or (disk.f_files and disk.f_favail < disk.f_files * 0.02):
        yield f"The host's disk has {disk.f_bavail * disk.f_frsize >> 20} MiB and {disk.f_favail} files left."
    tasks = int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
    most = min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))
    if tasks > most * 0.9:
        yield f"The host has {tasks} processes of {most}."
    used, _, files = Path("/proc/sys/fs/file-nr").read_text().split()
    if int(used) > int(files) * 0.9:
        yield f"The host has {used} open files of {files}."


def watch(path: Path) -> int:
    """A descriptor that tells of every use of a file, whoever uses it under whatever name."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    mask = IN_OPEN | IN_ACCESS | IN_MODIFY | IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF
    if fd < 0 or libc.inotify_add_watch(fd, os.fsencode(path), mask) < 0:
        raise OSError(ctypes.get_errno(), "inotify does not work here")
    return fd


def read_events(fd: int) -> list[int]:
    """The masks of the events since the last look."""
    found: list[int] = []
    while select.select([fd], [], [], 0)[0]:
        data, at = os.read(fd, 65536), 0
        while at < len(data):
            _, mask, _, length = struct.unpack_from("iIII", data, at)
            found.append(mask)
            at += 16 + length
    return found


def processes_in(pid_namespace: str) -> list[int]:
    """The host's numbers of the processes in a namespace of processes."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                if os.readlink(f"/proc/{entry.name}/ns/pid") == pid_namespace:
                    found.append(int(entry.name))
    return found


def kill_all(pids: list[int]) -> None:
    """Kill processes of a sandbox that outlived it."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
