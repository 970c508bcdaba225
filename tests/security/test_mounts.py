"""Attacks on the file system: mounts, namespaces, roots, the kernel's files in /proc and /sys, the system's own
folders.

Where one could change the machine if it were not refused, it writes what is there already.
"""

from __future__ import annotations

import pytest

from .attack import ABSENT, DENIED, NO_CALL, READ_ONLY, Attack
from .conftest import everywhere
from .world import World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]
ATTACKS = [
    Attack(
        "mounts file systems",
        """
os.makedirs("/tmp/m", exist_ok=True)
for kind in (b"tmpfs", b"proc", b"sysfs", b"cgroup", b"cgroup2", b"overlay", b"fuse", b"debugfs", b"devpts", b"ext4",
             b"mqueue"):
    attempt(kind.decode(), call, "mount", b"none", b"/tmp/m", kind, 0, b"")
""",
        controls=False,
        root=True,
    ),
    Attack(
        "makes read-only places writable, and binds others over them",
        """
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_MOVE, MS_PRIVATE, MS_REC = 1, 32, 4096, 8192, 1 << 18, 16384
os.makedirs("/tmp/m", exist_ok=True)
for place in (b"/", b"/usr", b"/etc", b"/.ale", b"/proc/sys", b"/proc", b"/sys", b"/dev"):
    attempt(f"remount {place}", call, "mount", b"none", place, 0, MS_REMOUNT | MS_BIND, 0)
attempt("bind", call, "mount", b"/tmp/m", b"/.ale", 0, MS_BIND, 0)
attempt("move", call, "mount", b"/.ale", b"/tmp/m", 0, MS_MOVE, 0)
attempt("share", call, "mount", b"none", b"/", 0, MS_PRIVATE | MS_REC, 0)
""",
        controls=False,
        root=True,
    ),
    Attack(
        "takes away what is mounted over things",
        """
with open("/proc/self/mountinfo") as lines:
    places = [line.split()[4] for line in lines]
for place in places:
    attempt(place, call, "umount2", place.encode(), 2)
""",
        controls=False,
    ),
    Attack(
        "mounts by the newer calls",
        """
attempt("fsopen", call, "fsopen", b"tmpfs", 0)
attempt("open_tree", call, "open_tree", -100, b"/usr", 1)
attempt("move_mount", call, "move_mount", -100, b"/usr", -100, b"/tmp", 0)
attributes = ctypes.create_string_buffer(struct.pack("=QQQQ", 0, 1, 0, 0))
attempt("mount_setattr", call, "mount_setattr", -100, b"/usr", 0, attributes, 32)
""",
        NO_CALL,
        controls=False,
    ),
    Attack(
        "is root in a user namespace of its own, and mounts there",
        """
NEWUSER, NEWNS, NEWPID, NEWNET = 0x10000000, 0x20000, 0x20000000, 0x40000000
NEWIPC, NEWUTS, NEWCGROUP, NEWTIME = 0x8000000, 0x4000000, 0x2000000, 0x80
for name, flags in dict(user=NEWUSER, user_and_mounts=NEWUSER | NEWNS, mounts=NEWNS, pids=NEWPID, network=NEWNET,
                        ipc=NEWIPC, uts=NEWUTS, cgroup=NEWCGROUP, time=NEWTIME).items():
    attempt("unshare " + name, call, "unshare", flags)
def clone(flags):
    pid = call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
clone(0)
control("an ordinary clone")
for name, flags in dict(user=NEWUSER, mounts=NEWNS, pids=NEWPID, network=NEWNET).items():
    attempt("clone " + name, clone, flags)
    wanted = ctypes.create_string_buffer(struct.pack("=QQQQQQQQ", flags, 0, 0, 0, 17, 0, 0, 0))
    attempt("clone3 " + name, call, "clone3", wanted, 64)
attempt("map itself to root", write, "/proc/self/uid_map", b"0 0 1")
""",
        NO_CALL,
        root=True,
    ),
    Attack(
        "enters the namespaces of process 1 and leaves its own",
        """
for kind in ("mnt", "net", "pid", "ipc", "uts", "user", "cgroup", "time"):
    own = os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)
    attempt("own " + kind, call, "setns", own, 0)
    attempt(kind, lambda: call("setns", os.open(f"/proc/1/ns/{kind}", os.O_RDONLY), 0))
attempt("by a process", lambda: call("setns", call("pidfd_open", 1, 0), 0x20000))
""",
        DENIED | {"EINVAL", "ENOENT"},
        controls=False,
        same_user=False,
    ),
    Attack(
        "changes its root, the way out of a chroot",
        """
os.makedirs("/tmp/jail/old", exist_ok=True)
outside = os.open("/", os.O_RDONLY)
attempt("pivot_root", call, "pivot_root", b"/tmp/jail", b"/tmp/jail/old")
try:
    os.chroot("/tmp/jail")
    control("chroot is allowed, to root of a container")
    os.fchdir(outside)
    os.chdir("../../../../../..")
    os.chroot(".")
    found("beyond the root", os.path.exists(FACTS["secret"]))
except OSError as error:
    say("refused", "chroot", errno.errorcode[error.errno])
""",
        DENIED | ABSENT,
        controls=False,
        root=True,
    ),
    Attack(
        "swaps, and takes the disk's quotas",
        """
open("/tmp/swap", "wb").write(bytes(1 << 20))
attempt("swap on", call, "swapon", b"/tmp/swap", 0)
attempt("swap off", call, "swapoff", b"/tmp/swap")
attempt("quotas", call, "quotactl", 0x80000700, b"/dev/vda", 0, ctypes.create_string_buffer(256))
attempt("accounting", call, "acct", b"/tmp/swap")
""",
        NO_CALL,
        controls=False,
    ),
    Attack(
        "changes the machine's settings in /proc/sys",
        """
open("/tmp/own", "w").close()
control("own file", write("/tmp/own", b"x") == 1)
for name in ("kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "kernel/sysrq", "kernel/panic",
             "vm/drop_caches", "vm/overcommit_memory", "kernel/randomize_va_space", "fs/suid_dumpable",
             "kernel/shmmax", "kernel/pid_max", "net/ipv4/ip_forward", "net/core/somaxconn",
             "fs/binfmt_misc/register", "kernel/ns_last_pid",
             "user/max_user_namespaces"):
    path = "/proc/sys/" + name
    now = open(path, "rb").read() if os.access(path, os.R_OK) else b"1"
    attempt(name, write, path, now)
""",
        DENIED | READ_ONLY | ABSENT,
        root=True,
    ),
    Attack(
        "presses the magic key",
        """
open("/tmp/own", "w").close()
control("own file", write("/tmp/own", b"x") == 1)
attempt("help", write, "/proc/sysrq-trigger", b"h")
""",
        DENIED | READ_ONLY | ABSENT | {"EIO"},
        root=True,
    ),
    Attack(
        "changes its own limits, and runs a program of its own as the kernel's helper",
        """
import glob
control("own file", open("/tmp/helper", "w").write("x"))
for path in glob.glob("/sys/fs/cgroup/**/*", recursive=True)[:400]:
    if os.path.basename(path) in ("release_agent", "notify_on_release", "memory.limit_in_bytes", "memory.max",
                                  "pids.max", "cgroup.procs", "tasks", "devices.allow", "cpu.cfs_quota_us",
                                  "cpu.max", "freezer.state",
                                  "cgroup.kill"):
        attempt(path, write, path, b"0")
for folder in glob.glob("/sys/fs/cgroup/*"):
    if os.path.isdir(folder):
        attempt("group in " + folder, os.mkdir, folder + "/own")
for path in ("/sys/kernel/uevent_helper", "/sys/fs/cgroup/memory/release_agent", "/sys/kernel/mm/ksm/run",
             "/sys/power/state", "/sys/kernel/debug/tracing/trace", "/sys/kernel/kexec_crash_size",
             "/sys/class/net/lo/mtu",
             "/sys/module/kernel/parameters/panic"):
    attempt(path, write, path, b"/tmp/helper")
""",
        DENIED | READ_ONLY | ABSENT,
        root=True,
    ),
    Attack(
        "writes into the system's folders and the resident's program",
        """
import shutil
open("/tmp/own", "w").close()
control("own file", write("/tmp/own", b"x") == 1)
for folder in ("/.ale", "/.ale/ale_sandbox", "/.ale/program", "/.ale/program/ale_sandbox", "/.ale/so", "/.ale/bin",
               "/.ale/control", "/proc", "/sys"):
    attempt(f"a file in {folder}", lambda: os.close(os.open(folder + "/sitecustomize.py", os.O_CREAT | os.O_WRONLY)))
for folder, _, names in os.walk("/.ale"):
    for name in names:
        path = os.path.join(folder, name)
        attempt(path, write, path, b"x")
        attempt("remove " + path, os.unlink, path)
        attempt("open up " + path, os.chmod, path, 0o777)
        break
attempt("rename", os.rename, "/.ale", "/ale")
attempt("socket", write, "/.ale/control/socket", b"x")
""",
        DENIED | READ_ONLY | ABSENT | {"EBUSY", "ENXIO"},
        root=True,
    ),
    Attack(
        "writes into the system's folders as the agent's user",
        """
open("/tmp/own", "w").close()
control("own file", write("/tmp/own", b"x") == 1)
for folder in ("/", "/usr", "/usr/bin", "/usr/local/bin", "/usr/lib", "/etc", "/home", "/dev", "/bin", "/lib"):
    attempt(folder, lambda: os.close(os.open(folder + "/planted", os.O_CREAT | os.O_WRONLY)))
for path in ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/ld.so.preload", "/etc/ld.so.cache", "/etc/bash.bashrc",
             "/etc/profile", "/usr/bin/sh", "/bin/bash"):
    attempt(path, write, path, b"x")
""",
        DENIED | READ_ONLY | ABSENT | {"ETXTBSY"},
        same_user=False,
    ),
]


@everywhere(ATTACKS)
async def test_the_file_system_is_the_sandboxes_own(world: World, attack: Attack) -> None:
    await world.withstands(attack)
