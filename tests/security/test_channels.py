"""Attacks through devices, terminals, sockets and memory that processes share."""

from __future__ import annotations

import pytest

from .attack import ABSENT, DENIED, Attack
from .conftest import everywhere
from .world import World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]
ATTACKS = [
    Attack(
        "reads the machine's disk",
        """
major, minor = FACTS["disk"]
os.mkfifo("/tmp/pipe")
control("a node that is allowed", os.path.exists("/tmp/pipe"))
attempt("make its node", os.mknod, "/tmp/disk", 0o60666, os.makedev(major, minor))
attempt("make a node of memory", os.mknod, "/tmp/mem", 0o20666, os.makedev(1, 1))
attempt("make a node of the kernel's log", os.mknod, "/dev/shm/log", 0o20666, os.makedev(1, 11))
for name in ("vda", "vda1", "sda", "sda1", "nvme0n1", "xvda", "mapper/control", "dm-0", "root", "disk"):
    attempt(name, read, f"/dev/{name}", 512)
""",
        ABSENT | DENIED,
        root=True,
    ),
    Attack(
        "opens any device but the harmless ones",
        """
GOOD = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
control("/dev/null", write("/dev/null", b"x") == 1)
import stat
for folder, folders, files in os.walk("/dev"):
    if folder.startswith(("/dev/pts", "/dev/shm", "/dev/fd")):
        continue
    for name in files:
        path = os.path.join(folder, name)
        if stat.S_ISCHR(os.lstat(path).st_mode) or stat.S_ISBLK(os.lstat(path).st_mode):
            found(path, name not in GOOD)
for name in ("kvm", "fuse", "loop0", "loop-control", "vsock", "vhost-vsock", "vhost-net", "net/tun", "userfaultfd",
             "kmsg", "btrfs-control", "cpu/0/msr", "hpet", "nvram", "uinput", "input/event0", "dri/card0", "nvidia0",
             "ttyS0", "tty0", "vcs", "vcsa", "autofs", "cuse", "hwrng", "snapshot", "watchdog", "zram0",
             "dma_heap/system", "mem"):
    attempt(name, os.open, f"/dev/{name}", os.O_RDONLY)
""",
        ABSENT | DENIED,
    ),
    Attack(
        "reads what another sandbox keeps in shared memory, queues and semaphores",
        """
name, key = FACTS["name"], int(FACTS["name"][:6], 16)
libc.shmat.restype = ctypes.c_void_p
own = call("shmget", 0, 4096, 0o1666)
control("own segment", libc.shmat(own, None, 0) not in (None, ctypes.c_void_p(-1).value))
while libc.mq_open(b"/own", os.O_CREAT | os.O_RDWR, 0o666, None) < 0:
    time.sleep(0.1)  # another test uses up what a user may have of them, for a moment
control("own queue")
open("/dev/shm/own", "w").close()
attempt("System V memory", call, "shmget", key, 0, 0)
attempt("System V semaphore", call, "semget", key, 0, 0)
attempt("queue", call, "mq_open", name.encode(), os.O_RDWR, 0, 0)
attempt("/dev/shm", read, "/dev/shm/" + name)
found("others' files in /dev/shm", set(os.listdir("/dev/shm")) - {"own"})
with open("/proc/sysvipc/shm") as lines:
    found("others' segments", len(lines.readlines()) > 2)
""",
        ABSENT,
    ),
    Attack(
        "reaches sockets of the host and of another sandbox",
        """
def connect(address):
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(address)
own = socket.socket(socket.AF_UNIX)
own.bind("\\0own")
own.listen()
connect("\\0own")
control("own socket", own.accept())
attempt("the host's abstract one", connect, FACTS["abstract"])
attempt("the host's by path", connect, FACTS["socket"])
attempt("the sibling's", connect, "\\0ale-sibling-" + FACTS["name"])
with open("/proc/net/unix") as lines:
    known = [line.split()[7] for line in lines if len(line.split()) > 7 and line.split()[7].startswith(("@", "/"))]
found("names of others", {name for name in known if name != "@own" and not name.endswith("/socket")})  # the resident's
""",
        ABSENT | {"ECONNREFUSED"},
    ),
    Attack(
        "drives the container engine",
        """
def connect(path):
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(path)
own = socket.socket(socket.AF_UNIX)
own.bind("/tmp/own.sock")
own.listen()
connect("/tmp/own.sock")
control("own socket", True)
for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock",
             "/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/buildkit/buildkitd.sock",
             "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/user/0/podman/podman.sock",
             "/run/user/1000/docker.sock", "/run/snapd.socket", "/tmp/.X11-unix/X0"):
    attempt(path, connect, path)
for name in ("/containerd-shim/moby", "/org/freedesktop/systemd1/notify", "/tmp/.X11-unix/X0", "/tmp/dbus"):
    attempt("abstract " + name, connect, "\\0" + name)
""",
        ABSENT | DENIED | {"ECONNREFUSED"},
    ),
    Attack(
        "writes to terminals of the host",
        """
master, slave = os.openpty()
control("own terminal", os.write(slave, b"x") == 1)
own = os.ttyname(slave)
attempt("the controlling one", os.open, "/dev/tty", os.O_RDWR)
attempt("the console", os.open, "/dev/tty1", os.O_RDWR)
attempt("the first serial line", os.open, "/dev/ttyS0", os.O_RDWR)
for number in range(20):
    path = f"/dev/pts/{number}"
    if path != own:
        attempt(path, os.open, path, os.O_RDWR)
""",
        ABSENT | DENIED | {"ENXIO", "EIO", "ENODEV"},
    ),
    Attack(
        "types into a terminal that is not its own",
        """
import fcntl
TIOCSTI, TIOCLINUX, TIOCCONS = 0x5412, 0x541C, 0x541D
master, slave = os.openpty()
control("own terminal", os.isatty(slave))
for fd in (0, 1, 2):
    attempt(f"descriptor {fd}", fcntl.ioctl, fd, TIOCSTI, b"x")
attempt("the console's output", fcntl.ioctl, slave, TIOCCONS)
attempt("the console's selection", fcntl.ioctl, slave, TIOCLINUX, b"\\x03")
""",
        DENIED | {"ENOTTY", "EINVAL", "EBADF"},
    ),
]


@everywhere(ATTACKS)
async def test_nobody_else_is_reached(world: World, attack: Attack) -> None:
    await world.withstands(attack)
