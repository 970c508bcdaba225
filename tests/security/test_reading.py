"""Attacks that read: the host's secrets, other sandboxes' files and processes, the resident, the kernel."""

from __future__ import annotations

import pytest

from ale.errors import SandboxError

from .attack import ABSENT, DENIED, Attack
from .conftest import each_provider, everywhere
from .world import World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

ATTACKS = [
    Attack(
        "reads the host's secret at its path",
        """
open("/tmp/own", "w").write("own")
control("read", read("/tmp/own") == b"own")
attempt("read", read, FACTS["secret"])
attempt("list", os.listdir, os.path.dirname(FACTS["secret"]))
attempt("list the provider's folder", os.listdir, FACTS["base"])
for path in ("/var/lib/docker", "/var/lib/containers/storage", "/run/containerd", "/root/.ssh"):
    attempt(path, os.listdir, path)
""",
        ABSENT | DENIED,
    ),
    Attack(
        "reads the host's secret through the root, the folder and the files of process 1",
        """
control("own root", os.listdir("/proc/self/root/usr") and os.readlink("/proc/self/cwd") and os.listdir("/proc/self/fd"))
for door in ("root", "cwd", "exe"):
    attempt(door, os.readlink, f"/proc/1/{door}")
attempt("secret", read, "/proc/1/root" + FACTS["secret"])
attempt("up", read, "/proc/1/cwd/../../../.." + FACTS["secret"])
for fd in range(8):
    attempt(f"descriptor {fd}", os.readlink, f"/proc/1/fd/{fd}")
    attempt(f"file {fd}", os.open, f"/proc/1/fd/{fd}", os.O_RDONLY)
attempt("mapped files", os.listdir, "/proc/1/map_files")
""",
        DENIED | ABSENT,
        root=True,
    ),
    Attack(
        "reads the host's secret through links of its own making",
        """
os.chdir("/tmp")
os.symlink("/etc/passwd", "good")
control("a link", b"root" in read("good"))
os.symlink(FACTS["secret"], "bad")
attempt("symbolic link", read, "bad")
os.symlink("/proc/1/root" + FACTS["secret"], "worse")
attempt("link through process 1", read, "worse")
open("mine", "w").write("x")
os.link("mine", "also mine")
control("a hard link", os.stat("mine").st_nlink == 2)
attempt("hard link to the host's secret", os.link, FACTS["secret"], "hard")
""",
        ABSENT | DENIED,
    ),
    Attack(
        "keeps the host's files by hard links out of what is mounted from there",
        """
source = "/.ale/ale_sandbox/resident/loop.py" if os.path.exists("/.ale/ale_sandbox") else "/.ale/bin/python3"
control("there it is", os.path.getsize(source) > 0)
for folder in ("/tmp", "/workspace", "/dev/shm"):
    attempt(folder, os.link, source, folder + "/kept")
""",
        frozenset({"EXDEV", "EPERM", "EROFS"}),
    ),
    Attack(
        "leaves by the folders that it was started with",
        """
def folders():
    here = set()
    for fd in range(3, 1024):
        try:
            here.add(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    return here
own = os.open("/tmp", os.O_RDONLY)
control("descriptors are seen", "/tmp" in folders())
os.close(own)
found("inherited descriptors", folders())
for fd in (0, 1, 2):
    kind = os.readlink(f"/proc/self/fd/{fd}")
    found(f"descriptor {fd} ({kind})", not kind.startswith(("pipe:", "/memfd:", "/dev/null")))
os.chdir("/" + "../" * 50)
found("a way up", os.path.exists("." + FACTS["secret"]))
""",
        ABSENT,
    ),
    Attack(
        "reads the memory, the environment and the layout of the resident",
        """
secret = ctypes.create_string_buffer(b"own memory")
with open("/proc/self/mem", "rb", buffering=0) as memory:
    memory.seek(ctypes.addressof(secret))
    control("own memory", memory.read(10) == b"own memory")
for name in ("mem", "environ", "maps", "smaps", "auxv", "stack", "syscall", "pagemap", "io"):
    attempt(name, read, f"/proc/1/{name}")
attempt("writes", write, "/proc/1/mem", b"x")
""",
        DENIED,
        root=True,
    ),
    Attack(
        "copies memory out of the resident with process_vm_readv",
        """
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
there, here = ctypes.create_string_buffer(b"own"), ctypes.create_string_buffer(16)
def copy(name, pid, address):
    local = Piece(ctypes.cast(here, ctypes.c_void_p), 3)
    remote = Piece(address, 3)
    return call(name, pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
own = child()
tool("own child", lambda: copy("process_vm_readv", own, ctypes.addressof(there)) == 3 and here.value == b"own")
end(own)
attempt("read", copy, "process_vm_readv", 1, 0x400000)
attempt("write", copy, "process_vm_writev", 1, 0x400000)
for pid in FACTS["pids"]:
    attempt(f"host's {pid}", copy, "process_vm_readv", pid, 0x400000)
""",
        DENIED | {"ESRCH"},
    ),
    Attack(
        "traces the resident",
        """
ATTACH, SEIZE, DETACH = 16, 0x4206, 17
own = child()
tool("own child", lambda: call("ptrace", SEIZE, own, 0, 0) == 0 and status("TracerPid", own) == str(os.getpid()))
end(own)
attempt("attach", call, "ptrace", ATTACH, 1, 0, 0)
attempt("seize", call, "ptrace", SEIZE, 1, 0, 0)
for pid in FACTS["pids"]:
    attempt(f"host's {pid}", call, "ptrace", ATTACH, pid, 0, 0)
""",
        DENIED | {"ESRCH"},
    ),
    Attack(
        "takes the resident's connection to the host with pidfd_getfd",
        """
ready, go = os.pipe()
own = child()
pidfd = call("pidfd_open", own, 0)
tool("own child", lambda: os.fstat(call("pidfd_getfd", pidfd, ready, 0)).st_ino == os.fstat(ready).st_ino)
end(own)
resident = call("pidfd_open", 1, 0)
for fd in range(3, 12):
    attempt(f"descriptor {fd}", call, "pidfd_getfd", resident, fd, 0)
attempt("compare", call, "kcmp", os.getpid(), 1, 0, 0, 3)
""",
        DENIED,
    ),
    Attack(
        "searches every process that it sees for secrets",
        """
own = child(lambda: os.execve("/bin/sleep", ["sleep", "4711"], {"MINE": "OWN-MARKER"}))
time.sleep(0.1)
everything = b""
for name in os.listdir("/proc"):
    if name.isdigit():
        for file in ("cmdline", "environ", "comm"):
            try:
                everything += open(f"/proc/{name}/{file}", "rb").read() + b"\\0"
            except OSError:
                pass
end(own)
reveal(everything)
control("own child's environment and command line", b"OWN-MARKER" in everything and b"4711" in everything)
found("the host's processes", b"98765" in everything)
found("more processes than are ours", len([n for n in os.listdir("/proc") if n.isdigit()]) > 6)
""",
        ABSENT,
    ),
    Attack(
        "reads the host's memory",
        """
control("a device that is allowed", len(os.read(os.open("/dev/zero", os.O_RDONLY), 4)) == 4)
for path in ("/proc/kcore", "/dev/mem", "/dev/kmem", "/dev/port", "/proc/vmcore", "/dev/oldmem", "/dev/crash"):
    attempt(path, read, path, 64)
""",
        ABSENT | DENIED | {"ENODATA"},
    ),
    Attack(
        "learns where the kernel lies",
        """
def addresses(path):
    try:
        with open(path) as lines:
            first = [next(lines, "").split() for _ in range(200)]
    except OSError as error:
        return [], errno.errorcode[error.errno]
    return [words[0] for words in first if words], "ZERO"
with open("/proc/self/maps") as lines:
    control("own layout", any(int(line.split("-")[0], 16) for line in lines))
shown, reason = addresses("/proc/kallsyms")
found("addresses of symbols", any(int(word, 16) for word in shown), reason)
attempt("the last faults", read, "/proc/self/stack")
attempt("timers", read, "/proc/timer_list")
""",
        ABSENT | DENIED | {"ZERO", "ENODATA"},
    ),
    Attack(
        "reads the kernel's log",
        """
for action, buffer in ((3, ctypes.create_string_buffer(4096)), (2, ctypes.create_string_buffer(4096))):
    attempt(f"syslog {action}", call, "syslog", action, buffer, 4096)
for path in ("/dev/kmsg", "/proc/kmsg", "/var/log/kern.log", "/var/log/syslog"):
    attempt(path, read, path)
""",
        ABSENT | DENIED,
        controls=False,
    ),
    Attack(
        "reads keys of others, and joins their keyrings",
        """
buffer = ctypes.create_string_buffer(4096)
attempt("add", call, "add_key", b"user", b"ale", b"v", 1, -4)
attempt("request", call, "request_key", b"user", b"ale", 0, -4)
attempt("join a session", call, "keyctl", 1, b"ale-shared")
for ring in (-3, -4, -5):
    attempt(f"take {ring}", call, "keyctl", 8, ring, -3)
    size = attempt(f"read {ring}", call, "keyctl", 11, ring, buffer, 4096) or 0
    for (number,) in struct.iter_unpack("=i", buffer.raw[:size]) if size % 4 == 0 else ():
        shown = attempt(f"key {number}", call, "keyctl", 11, number, buffer, 4096)
        reveal(buffer.raw[:shown or 0])
attempt("search", call, "keyctl", 10, -4, b"user", b"ale-" + FACTS["name"].encode(), 0)
with contextlib.suppress(OSError):
    reveal(open("/proc/keys").read())
    found("the host's keys in /proc/keys", FACTS["name"] in open("/proc/keys").read(), "EACCES")
""",
        DENIED | {"ENOSYS"},
        controls=False,
        root=True,
    ),
    Attack(
        "follows the host's paths that it finds in its mounts",
        """
with open("/proc/self/mountinfo") as lines:
    mounts = [line.split() for line in lines]
control("mounts are seen", len(mounts) > 3)
import re
paths = {path for line in mounts for path in [line[3], *re.findall(r"(/[^,:\\s]+)", line[-1])]}
shown = {line[4] for line in mounts}
for path in sorted(paths):
    if len(path) > 1 and path.startswith(("/tmp/ale-", "/var/lib", "/run/", "/home", "/root")) and path not in shown:
        attempt(path, os.listdir, path)
attempt("the sibling's", os.listdir, "/proc/1/root/tmp")
""",
        ABSENT | DENIED,
    ),
    Attack(
        "opens files by their handles, as Shocker did",
        """
handle = ctypes.create_string_buffer(struct.pack("=Ii", 8, 1) + struct.pack("=II", 2, 0), 136)  # the root of a disk
big = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0), 136)
mount = ctypes.c_int()
for path in ("/.ale", "/etc/hosts", "/usr", "/workspace"):
    here = os.open(path, os.O_RDONLY)
    attempt(f"open the disk's root from {path}", call, "open_by_handle_at", here, handle, os.O_RDONLY)
    os.close(here)
""",
        DENIED,
        controls=False,
        root=True,
    ),
]


@everywhere(ATTACKS)
async def test_what_is_not_the_agents_cannot_be_read(world: World, attack: Attack) -> None:
    await world.withstands(attack)


@each_provider()
async def test_a_link_leads_the_hosts_downloads_and_uploads_nowhere_else(world: World) -> None:
    async with world.arena() as scene:
        where = world.host.file
        await scene.box.exec(f"ln -s {where} link; ln -s {where.parent} folder; ln -s /proc/1/root{where} worse")
        for path in ("link", f"folder/{where.name}", "worse"):
            with pytest.raises((OSError, SandboxError)):
                await scene.box.download(path)
            with pytest.raises(SandboxError):
                await scene.box.upload({path: b"mine"})
        for name in ("mem", "environ", "oom_score_adj", "timerslack_ns", *(f"fd/{number}" for number in range(12))):
            await scene.box.exec(f"ln -sfn /proc/self/{name} link")
            with pytest.raises(SandboxError):
                await scene.box.upload({"link": b"x"})
        assert (await scene.box.exec("echo alive")).stdout == b"alive\n"
