"""A provider with its victims: where attacks happen, and what looks afterwards whether anything came of them.

1. `World` is a started provider, a sibling sandbox with secrets of its own, and the host (`host.py`).
2. `World.arena()` gives a fresh sandbox to attack from. Before anything runs in it, the guard sees from the host that
   the namespaces and limits which must hold are in place: an attack that could harm this machine is not tried without.
3. When the arena is left, the witnesses look: nothing of the host or the sibling has changed. The sandbox is being
   stopped meanwhile; that its processes and control groups are gone is looked at when the next arena is left, or at the
   end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ale.specs.sandbox import ExecResult, Resources, Sandbox, SandboxSpec

from .attack import Attack, judge, text_of
from .host import UID_BASE, Host, difference, kill_all, processes_in
from .users import OPERATIONS

PROVIDERS: dict[str, dict[str, Any]] = {
    "local": {"use": "local", "isolation": "bubblewrap", "uid_base": UID_BASE},
    "docker": {"use": "docker"},
    "podman": {"use": "podman"},
    "docker as root": {"use": "docker", "user": "root"},
    "podman as root": {"use": "podman", "user": "root"},
}
SMALL = Resources(memory_mib=200, pids=100, cpus=1.0)
NAMESPACES = ("pid", "net", "mnt", "ipc", "uts")
HARMLESS_CAPS = 0x401FB
"""What root of a container may have (`ROOT_CAPS`): CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP
SYS_CHROOT."""
SIBLING = """
import ctypes, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
secret, name = os.environ["SECRET"], os.environ["NAME"]
with open("/dev/shm/" + name, "w") as file:
    file.write(secret)
os.chmod("/dev/shm/" + name, 0o666)
key = int(name[:6], 16)
libc.shmat.restype = ctypes.c_void_p
segment = libc.shmget(key, 4096, 0o1666)
ctypes.memmove(libc.shmat(segment, None, 0), secret.encode(), len(secret))
assert libc.semget(key, 1, 0o1666) >= 0 and libc.msgget(key, 0o1666) >= 0
while libc.mq_open(b"/" + name.encode(), os.O_CREAT | os.O_RDWR, 0o666, None) < 0:
    time.sleep(0.1)  # another test uses up what a user may have of them, for a moment
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0ale-sibling-" + name)
listener.listen()
tcp = socket.socket()
tcp.bind(("127.0.0.1", 8601))
tcp.listen()
open("ready", "w").close()
listener.accept()
open("visited", "w").close()
"""
LOOK = """
shopt -s dotglob
echo "$(<secret.txt)" "$(</dev/shm/$NAME)" "$(</proc/sys/kernel/hostname)"
printf '%s\\n' /workspace/* /dev/shm/* /tmp/*
read -r words </proc/$PID/stat && set -- ${words#*) } && case $1 in [TtZX]) echo stopped;; *) echo alive;; esac
echo "niceness ${17}, started ${20}, $(</proc/$PID/oom_score_adj)"
echo "$(</proc/$PID/limits)"
"""
"""What the sibling looks like, by what the shell itself can do: this runs after each attack."""


@dataclass
class Scene:
    """A sandbox to attack from, as it looks from the host."""

    world: World
    box: Sandbox
    namespaces: Mapping[str, str]
    resident: int
    """The host's number of its resident."""
    pin: int
    """Keeps the namespace of its processes from being forgotten."""
    groups: list[Path] = field(default_factory=list)

    async def run(self, program: str, *, timeout_s: float = 30.0, **options: Any) -> ExecResult:
        """Run a Python program (after `inside.py`) as the agent."""
        text = text_of(program, self.world.facts(self))
        return await self.box.exec("exec python3 -I -S -", stdin=text, timeout_s=timeout_s, **options)

    async def left(self, but: frozenset[int] = frozenset()) -> list[int]:
        """Its processes but for the resident and those named, once what is just ending has ended."""
        return await gone(lambda: [pid for pid in self.processes() if pid not in but], 15.0)

    def processes(self) -> list[int]:
        """The host's numbers of its processes, but for the resident."""
        return [pid for pid in processes_in(self.namespaces["pid"]) if pid != self.resident]


class World:
    """A provider, its sibling, and what looks after both."""

    def __init__(self, name: str, provider: Any, host: Host, image: str | None) -> None:
        self.name, self.provider, self.host, self.image = name, provider, host, image
        self.containers, self.root = name != "local", name.endswith("root")
        self.secret = f"SECRET-OF-THE-SIBLING-{secrets.token_hex(12)}"
        self.sibling: Sandbox
        self.sibling_env: dict[str, str] = {}
        self.sibling_before = self.sibling_cannot = ""
        self.sibling_pids: list[int] = []
        """The host's numbers of its processes."""
        self.spares: deque[asyncio.Task[Sandbox]] = deque()
        self.ending: asyncio.Task[list[str]] | None = None
        """The end of the last sandbox, which gives what outlived it."""

    async def start(self) -> None:
        """Start the sibling and what lives in it."""
        self.sibling = await self.provider.start_sandbox(self.spec(files={"secret.txt": self.secret.encode()}))
        env = {"SECRET": self.secret, "NAME": self.host.name}
        command = (
            "cat >victim.py; python3 victim.py >/dev/null 2>error & echo $!; "
            "until [ -e ready ] || [ -s error ]; do sleep .05; done; cat error"
        )
        done = await self.sibling.exec(command, stdin=SIBLING.encode(), env=env)
        assert done.exit_code == 0, done.output
        self.sibling_env = {**env, "PID": done.stdout.split()[0].decode()}
        self.sibling_pids = processes_in(
            (await self.sibling.exec("readlink /proc/self/ns/pid")).stdout.decode().strip()
        )
        self.sibling_before = await self.look_at_sibling()
        assert self.sibling_before.count(self.secret) == 2, self.sibling_before
        self.sibling_cannot = await self.sibling_operations()

    async def close(self) -> None:
        """End the sandboxes that are left."""
        await self.rest()
        await self.sibling.stop()

    async def rest(self) -> None:
        """End the sandboxes that nobody has attacked from; see that the last one that was has ended."""
        spares = await asyncio.gather(*self.spares)
        self.spares.clear()
        await asyncio.gather(*(box.stop() for box in spares))
        ending, self.ending = self.ending, None
        left = [] if ending is None else await ending
        assert not left, "\n".join(left)

    def spec(self, resources: Resources = SMALL, **settings: Any) -> SandboxSpec:
        """What sandboxes are started from. Only local ones can limit the disk beside a chosen image."""
        if not self.containers:
            resources = resources.model_copy(update={"disk_mib": resources.disk_mib or 32})
        return SandboxSpec(**{"image": self.image, "resources": resources, **settings})

    def facts(self, scene: Scene) -> dict[str, Any]:
        """What an attack may know."""
        here = os.stat("/").st_dev
        return {
            "name": self.host.name,
            "secret": str(self.host.file),
            "addresses": self.host.listeners.addresses,
            "abstract": self.host.listeners.abstract,
            "socket": self.host.listeners.path,
            "pids": [p.running.pid for p in self.host.processes] + [os.getpid(), scene.resident, *self.sibling_pids],
            "disk": (os.major(here), os.minor(here)),
            "base": str(getattr(self.provider, "base", "/tmp")),
            "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES},
            "root": self.root,
        }

    # --- a sandbox to attack from

    @contextlib.asynccontextmanager
    async def arena(self, spec: SandboxSpec | None = None) -> AsyncIterator[Scene]:
        """A fresh sandbox; when it is left, that nothing came of it is looked at."""
        box = await self.fresh(spec)
        scene: Scene | None = None
        try:
            scene = await self.guarded(box)
            yield scene
        finally:
            before, self.ending = self.ending, asyncio.ensure_future(self.end(box, scene))
            harm = [*(await self.harm()), *([] if before is None else await before)]
            assert not harm, "HARM WAS DONE:\n" + "\n".join(harm)

    async def fresh(self, spec: SandboxSpec | None) -> Sandbox:
        """A new sandbox. The next usual ones are started while this one is attacked from."""
        if spec is not None:
            return await self.provider.start_sandbox(spec)  # type: ignore[no-any-return]
        while len(self.spares) < (3 if self.containers else 2):
            self.spares.append(asyncio.ensure_future(self.provider.start_sandbox(self.spec())))
        return await self.spares.popleft()

    async def end(self, box: Sandbox, scene: Scene | None, seconds: float = 10.0) -> list[str]:
        """Stop a sandbox; what outlives it, a sentence each."""
        await box.stop()
        if scene is None:
            return []
        found = []
        left = await gone(lambda: processes_in(scene.namespaces["pid"]), seconds)
        os.close(scene.pin)
        if left:
            found.append(f"{len(left)} processes outlived their sandbox {box.id}.")
            kill_all(left)
        if await gone(lambda: [path for path in scene.groups if path.exists()], seconds):
            found.append(f"Control groups of the sandbox {box.id} are left.")
        return found

    async def guarded(self, box: Sandbox) -> Scene:
        """See from the host that the sandbox has namespaces, limits and no more rights than it should."""
        said = (await box.exec("cat /proc/self/status; readlink /proc/self/ns/pid")).stdout.decode().splitlines()
        status = dict(line.split(":\t", 1) for line in said if ":\t" in line)
        allowed = HARMLESS_CAPS if self.root else 0
        assert not int(status["CapEff"], 16) & ~allowed, f"The agent has capabilities: {status['CapEff']}."
        assert status["NoNewPrivs"] == "1"
        inside = processes_in(said[-1])
        assert inside, "The sandbox's processes are not to be seen from the host."
        assert os.getpid() not in inside, "The sandbox's processes are not in a namespace of their own."
        resident = min(inside, key=lambda pid: last_number(pid))
        namespaces = {name: os.readlink(f"/proc/{resident}/ns/{name}") for name in NAMESPACES}
        for name, value in namespaces.items():
            assert value != os.readlink(f"/proc/self/ns/{name}"), f"The sandbox is in the host's namespace {name}."
        pin = os.open(
            f"/proc/{resident}/ns/pid", os.O_RDONLY
        )  # so that no other sandbox gets the same number meanwhile
        groups = groups_of(resident)
        for controller, most in (("memory", 512 << 20), ("pids", 300)):
            limit = limit_of(groups, controller)
            assert limit is not None, f"The sandbox has no limit of {controller}."
            assert limit <= most, f"The sandbox's limit of {controller} is {limit}."
        return Scene(self, box, namespaces, resident, pin, list(groups.values()))

    # --- witnesses

    async def harm(self) -> list[str]:
        """What came of an attack, a sentence each."""
        found = list(self.host.harm())
        try:
            before, self.sibling_before = self.sibling_before, await self.look_at_sibling()
            if self.sibling_before != before:
                found.append(f"The sibling changed:\n{difference(before, self.sibling_before)}")
        except Exception as error:
            found.append(f"The sibling does not answer: {error}")
        return found

    async def look_at_sibling(self) -> str:
        """Everything of the sibling that must stay the same."""
        return (await self.sibling.exec(LOOK, env=self.sibling_env, timeout_s=20)).output

    async def sibling_operations(self) -> str:
        """What the sibling cannot do now (see `OPERATIONS`)."""
        return (await self.sibling.exec("python3 -", stdin=OPERATIONS.encode(), timeout_s=20)).output

    async def withstands(self, attack: Attack) -> None:
        """Let an attack happen; assert that it was one, and that nothing came of it."""
        async with self.arena() as scene:
            result = await scene.run(attack.program)
            for secret in (self.host.secret, self.secret):
                assert secret not in result.output, f"THE ATTACK SUCCEEDED: {attack.name} printed {secret}"
            judge(attack, result)
            assert (await scene.box.exec("echo alive")).stdout == b"alive\n", "The resident lives on."


async def gone(left: Callable[[], list[Any]], seconds: float) -> list[Any]:
    """Wait until there is nothing left; what is left after all."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not left():
            return []
        await asyncio.sleep(0.02)
    return left()


def last_number(pid: int) -> int:
    """A process's number in the innermost namespace that it is in."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:"))
    return int(line.split()[-1])


def groups_of(pid: int) -> dict[str, Path]:
    """The control groups of a process that limit something, by controller ("" in version 2)."""
    found = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, place = line.split(":", 2)
        for name in names.split(",") if names else [""]:
            folder = Path("/sys/fs/cgroup", name) if name else Path("/sys/fs/cgroup")
            if place != "/" and name in ("", "memory", "pids", "cpu") and (folder / place.lstrip("/")).is_dir():
                found[name] = folder / place.lstrip("/")
    return found


def limit_of(groups: Mapping[str, Path], controller: str) -> int | None:
    """A limit, in bytes or processes; None where there is none."""
    files = {"memory": ("memory.limit_in_bytes", "memory.max"), "pids": ("pids.max", "pids.max")}[controller]
    for name, file in zip((controller, ""), files, strict=True):
        if name in groups and (groups[name] / file).exists():
            text = (groups[name] / file).read_text().strip()
            return None if text == "max" else int(text)
    return None
