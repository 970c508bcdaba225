"""Attacks on the kernel's gates: mounts, namespaces, rights, clocks, modules, and what else belongs to the whole machine.

Where one could change the machine if it were not refused, it asks for what is so already (the same time, the same name).
"""

from __future__ import annotations

import platform

import pytest

from .attack import ABSENT, DENIED, READ_ONLY, Attack
from .conftest import everywhere
from .world import World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]
NO_CALL = DENIED | {"ENOSYS"}

MOUNTS = [
    Attack(
        "mounts file systems",
        """
os.makedirs("/tmp/m")
for kind in (b"tmpfs", b"proc", b"sysfs", b"cgroup", b"cgroup2", b"overlay", b"fuse", b"debugfs", b"devpts", b"ext4", b"mqueue"):
    attempt(kind.decode(), call, "mount", b"none", b"/tmp/m", kind, 0, b"")
""",
        controls=False,
        root=True,
    ),
    Attack(
        "makes read-only places writable, and binds others over them",
        """
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_MOVE, MS_PRIVATE, MS_REC = 1, 32, 4096, 8192, 1 << 18, 16384
os.makedirs("/tmp/m")
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
NEWUSER, NEWNS, NEWPID, NEWNET, NEWIPC, NEWUTS, NEWCGROUP, NEWTIME = 0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x2000000, 0x80
for name, flags in dict(user=NEWUSER, user_and_mounts=NEWUSER | NEWNS, mounts=NEWNS, pids=NEWPID, network=NEWNET, ipc=NEWIPC,
                        uts=NEWUTS, cgroup=NEWCGROUP, time=NEWTIME).items():
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
    attempt("clone3 " + name, call, "clone3", ctypes.create_string_buffer(struct.pack("=QQQQQQQQ", flags, 0, 0, 0, 17, 0, 0, 0)), 64)
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
os.makedirs("/tmp/jail/old")
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
]
WRITES = [
    Attack(
        "changes the machine's settings in /proc/sys",
        """
open("/tmp/own", "w").close()
control("own file", write("/tmp/own", b"x") == 1)
for name in ("kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "kernel/sysrq", "kernel/panic", "vm/drop_caches",
             "vm/overcommit_memory", "kernel/randomize_va_space", "fs/suid_dumpable", "kernel/shmmax", "kernel/pid_max",
             "net/ipv4/ip_forward", "net/core/somaxconn", "fs/binfmt_misc/register", "kernel/ns_last_pid", "user/max_user_namespaces"):
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
    if os.path.basename(path) in ("release_agent", "notify_on_release", "memory.limit_in_bytes", "memory.max", "pids.max", "cgroup.procs",
                                  "tasks", "devices.allow", "cpu.cfs_quota_us", "cpu.max", "freezer.state", "cgroup.kill"):
        attempt(path, write, path, b"0")
for folder in glob.glob("/sys/fs/cgroup/*"):
    if os.path.isdir(folder):
        attempt("group in " + folder, os.mkdir, folder + "/own")
for path in ("/sys/kernel/uevent_helper", "/sys/fs/cgroup/memory/release_agent", "/sys/kernel/mm/ksm/run", "/sys/power/state",
             "/sys/kernel/debug/tracing/trace", "/sys/kernel/kexec_crash_size", "/sys/class/net/lo/mtu", "/sys/module/kernel/parameters/panic"):
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
for folder in ("/.ale", "/.ale/ale_resident", "/.ale/program", "/.ale/program/ale_resident", "/.ale/so", "/.ale/bin", "/.ale/control", "/proc", "/sys"):
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
for path in ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/ld.so.preload", "/etc/ld.so.cache", "/etc/bash.bashrc", "/etc/profile", "/usr/bin/sh", "/bin/bash"):
    attempt(path, write, path, b"x")
""",
        DENIED | READ_ONLY | ABSENT | {"ETXTBSY"},
        same_user=False,
    ),
]
RIGHTS = [
    Attack(
        "becomes another user",
        """
control("itself", os.setresuid(-1, -1, -1) is None)
attempt("root", os.setresuid, 0, 0, 0)
attempt("root's group", os.setresgid, 0, 0, 0)
attempt("groups", os.setgroups, [0])
attempt("the tests' user", os.setresuid, 1001, 1001, 1001)
libc.setfsuid(0)
attempt("by its file system id", lambda: os.close(os.open("/proc/1/environ", os.O_RDONLY)))
attempt("give a file away", lambda: os.chown(os.open("/tmp/f", os.O_CREAT), 1001, 1001))
""",
        same_user=False,
    ),
    Attack(
        "takes capabilities",
        """
def take(effective, permitted, inheritable):
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    data = ctypes.create_string_buffer(struct.pack("=IIIIII", effective & 0xFFFFFFFF, permitted & 0xFFFFFFFF, inheritable & 0xFFFFFFFF, 0, 0, 0))
    call("capset", header, data)
have = int(status("CapPrm"), 16)
take(have, have, 0)
control("those that it has")
for number in (21, 12, 13, 16, 17, 19, 22, 25, 2, 24):  # SYS_ADMIN NET_ADMIN NET_RAW SYS_MODULE RAWIO PTRACE BOOT TIME DAC_READ_SEARCH RESOURCE
    attempt(f"capability {number}", take, 1 << number, 1 << number, 0)
    attempt(f"ambient {number}", lambda: (_ for _ in ()).throw(OSError(ctypes.get_errno(), "")) if libc.prctl(47, 2, number, 0, 0) else None)
""",
        root=True,
    ),
    Attack(
        "gives a program the rights of root, by mode or by capability",
        """
import shutil, subprocess
shutil.copy("/bin/sh", "/tmp/sh")
os.chmod("/tmp/sh", 0o4755)
done = subprocess.run(["/tmp/sh", "-c", "grep -E '^(Uid|CapEff)' /proc/self/status"], capture_output=True, text=True)
control("its own program runs", "Uid" in done.stdout)
found("another user by its own set-uid program", done.stdout.split()[2] != str(os.getuid()), "EPERM")
capabilities = struct.pack("<IIIII", 0x02000001, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0)
attempt("capabilities of a file", os.setxattr, "/tmp/sh", "security.capability", capabilities)
with open("/tmp/sh2", "wb") as file:
    file.write(open("/bin/sh", "rb").read())
attempt("a file of root's", os.chown, "/tmp/sh2", 0, 0)
image = os.memfd_create("sh", 0)
os.write(image, open("/bin/sh", "rb").read())
os.fchmod(image, 0o6755)
done = subprocess.run([f"/proc/self/fd/{image}", "-c", "grep ^Uid /proc/self/status"], capture_output=True, text=True, pass_fds=[image])
found("another user by a program in memory", str(os.getuid()) not in done.stdout, "EPERM")
""",
        DENIED | {"ENOTSUP", "EOPNOTSUPP"},
        same_user=False,
    ),
    Attack(
        "runs the image's set-uid programs",
        """
import subprocess
control("no new rights", status("NoNewPrivs") == "1")
for command in (["su", "-c", "id -u"], ["sudo", "-n", "id", "-u"], ["newgrp", "root"], ["sg", "root", "id -u"], ["pkexec", "id", "-u"], ["doas", "id", "-u"],
                ["mount", "-t", "tmpfs", "x", "/tmp"], ["chsh", "-s", "/tmp/x"], ["fusermount", "/tmp"], ["ping", "-c1", "-W1", "127.0.0.1"]):
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=1)
    except (FileNotFoundError, PermissionError) as error:
        say("refused", command[0], errno.errorcode[error.errno])
        continue
    except subprocess.TimeoutExpired:
        say("refused", command[0], "EPERM")
        continue
    found(command[0], done.stdout.strip() == b"0" or (command[0] == "mount" and done.returncode == 0), "EPERM")
for folder in ("/usr/bin", "/usr/sbin", "/bin"):
    for name in os.listdir(folder):
        mode = os.stat(os.path.join(folder, name)).st_mode if os.path.exists(os.path.join(folder, name)) else 0
        if mode & 0o6000:
            done = subprocess.run(["grep", "^Uid", "/proc/self/status"], executable="/bin/grep", capture_output=True, text=True)
            found(f"rights of {name}", done.stdout.split()[2] != str(os.getuid()), "EPERM")
""",
        DENIED | ABSENT,
        same_user=False,
    ),
    Attack(
        "takes back the promise to gain no new rights",
        """
def prctl(*values):
    if libc.prctl(*[ctypes.c_ulong(v) for v in (*values, 0, 0, 0, 0)][:5]) < 0:
        raise OSError(ctypes.get_errno(), "")
prctl(38, 1)
control("the promise itself", status("NoNewPrivs") == "1" and status("Seccomp") == "2")
attempt("no new rights, off", prctl, 38, 0)
attempt("the filter, off", prctl, 22, 0)
attempt("securebits", prctl, 28, 0x2F)
""",
        DENIED | {"EINVAL"},
        same_user=False,
    ),
    Attack(
        "answers its own filtered calls, to let them through",
        """
# A filter that asks a supervisor, which says "go on": it must not weaken the filter that was there before.
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
number = CALLS["sethostname"][0 if X86_64 else 1]
code = struct.pack("=HBBIHBBIHBBIHBBI", 0x20, 0, 0, 0, 0x15, 0, 1, number, 0x06, 0, 0, 0x7FC00000, 0x06, 0, 0, 0x7FFF0000)
buffer = ctypes.create_string_buffer(code)
program = Program(4, ctypes.addressof(buffer))
try:
    listener = call("seccomp", 1, 8, ctypes.byref(program))
except OSError as error:
    control("such a filter is refused", error.errno in (errno.EPERM, errno.ENOSYS, errno.EINVAL))
    say("refused", "supervised call", errno.errorcode[error.errno])
    sys.exit()
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    try:
        call("sethostname", b"sandbox", 7)
        os.write(writer, b"did")
    except OSError as error:
        os.write(writer, str(error.errno).encode())
    os._exit(0)
import fcntl, select
request = ctypes.create_string_buffer(80)
if select.select([listener], [], [], 0.5)[0]:
    fcntl.ioctl(listener, 0xC0502100, request)
    control("the supervisor was asked")
    fcntl.ioctl(listener, 0xC0182101, struct.pack("=QqiI", struct.unpack_from("=Q", request.raw)[0], 0, 0, 1))
else:
    control("the first filter decides without asking")
answer = os.read(reader, 10)
found("supervised call", answer == b"did", errno.errorcode[int(answer)] if answer != b"did" else "")
""",
        NO_CALL | {"EINVAL"},
    ),
    Attack(
        "raises its limits and those of others",
        """
import resource
def raised(kind, limit):
    try:
        resource.setrlimit(kind, (limit, limit))
    except ValueError as error:  # how Python says EPERM here
        raise PermissionError(errno.EPERM, str(error))
raised(resource.RLIMIT_CORE, 0)
control("lower", resource.getrlimit(resource.RLIMIT_CORE) == (0, 0))
attempt("core dumps", raised, resource.RLIMIT_CORE, 1 << 20)
for name in ("NOFILE", "MEMLOCK", "NICE", "RTPRIO", "MSGQUEUE", "SIGPENDING"):
    kind = getattr(resource, "RLIMIT_" + name, None)
    if kind is not None and resource.getrlimit(kind)[1] != resource.RLIM_INFINITY:
        attempt(name, raised, kind, resource.getrlimit(kind)[1] + 1)
if not FACTS["root"]:  # who is root in there can only starve its own sandbox
    attempt("the resident's", resource.prlimit, 1, resource.RLIMIT_NOFILE, (4, 4))
""",
        DENIED,
    ),
    Attack(
        "takes more of the processors than its share",
        """
os.nice(1)
control("nicer", os.getpriority(os.PRIO_PROCESS, 0) == 1)
attempt("less nice", os.setpriority, os.PRIO_PROCESS, 0, -20)
for policy in (os.SCHED_FIFO, os.SCHED_RR):
    attempt(f"policy {policy}", os.sched_setscheduler, 0, policy, os.sched_param(50))
attempt("deadlines", call, "sched_setattr", 0, ctypes.create_string_buffer(struct.pack("=IIQiIQQQ", 48, 6, 0, 0, 0, 10**7, 10**8, 10**8)), 0)
attempt("first at the disk", call, "ioprio_set", 1, 0, 1 << 13)
""",
    ),
    Attack(
        "hides from the kernel's killer, and offers the resident to it",
        """
path = "/proc/self/oom_score_adj"
write(path, b"900")
control("itself first", open(path).read().strip() == "900")
attempt("never itself", write, path, b"-1000")
attempt("itself last", write, path, b"-1")
attempt("the resident", write, "/proc/1/oom_score_adj", b"1000")
attempt("by the older file", write, "/proc/1/oom_adj", b"15")
""",
        DENIED,
        same_user=False,
    ),
    Attack(
        "leaves a core dump where the kernel puts it",
        """
import resource
try:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    say("did", "raise the limit")
except (OSError, ValueError):
    say("refused", "raise the limit", "EPERM")
os.chdir("/tmp")
pid = child(lambda: os.kill(os.getpid(), signal.SIGSEGV))
_, how = os.waitpid(pid, 0)
control("it crashed", os.WIFSIGNALED(how))
found("the kernel dumped it", os.WCOREDUMP(how))
found("a dump", any(name.startswith("core") for name in os.listdir(".")))
""",
        DENIED | ABSENT,
    ),
]
MACHINE = [
    Attack(
        "loads and removes kernel modules",
        """
garbage = ctypes.create_string_buffer(64)
attempt("load", call, "init_module", garbage, 64, b"")
file = os.open("/tmp/m.ko", os.O_CREAT | os.O_RDWR)
attempt("load a file", call, "finit_module", file, b"", 0)
attempt("remove", call, "delete_module", b"ale_no_such_module", 0o4000)
""",
        NO_CALL,
        controls=False,
        root=True,
    ),
    Attack(
        "sets the clock",
        """
now = time.clock_gettime_ns(time.CLOCK_REALTIME)
control("it can be read", now > 0)
buffer = ctypes.create_string_buffer(struct.pack("=qq", now // 10**9, now % 10**9))
attempt("clock_settime", call, "clock_settime", 0, buffer)
attempt("settimeofday", call, "settimeofday", ctypes.create_string_buffer(struct.pack("=qq", now // 10**9, now % 10**9 // 1000)), 0)
state = ctypes.create_string_buffer(256)
tick = ctypes.create_string_buffer(struct.pack("=IIqqqqIIqqqqqq", 0x4000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10000) + bytes(160))
attempt("adjtimex", call, "adjtimex", tick)
""",
        NO_CALL,
        root=True,
    ),
    Attack(
        "restarts the machine, or another kernel on it",
        """
attempt("ctrl-alt-del", call, "reboot", 0xFEE1DEAD, 672274793, 0, 0)  # what it is anyway
attempt("kexec", call, "kexec_load", 0, 0, 0, 0)
attempt("hang up", call, "vhangup")
""",
        NO_CALL,
        controls=False,
    ),
    Attack(
        "renames the machine",
        """
control("it has a name", socket.gethostname())
attempt("host", call, "sethostname", b"sandbox", 7)
attempt("domain", call, "setdomainname", b"(none)", 6)
""",
        NO_CALL,
    ),
    Attack(
        "runs programs of its own in the kernel",
        """
attempt("a map", call, "bpf", 0, ctypes.create_string_buffer(struct.pack("=IIIII", 1, 4, 4, 1, 0) + bytes(100)), 72)
code = ctypes.create_string_buffer(struct.pack("=BBhi", 0xB7, 0, 0, 0) + struct.pack("=BBhi", 0x95, 0, 0, 0))
license = ctypes.create_string_buffer(b"GPL")
wanted = struct.pack("=IIQQ", 1, 2, ctypes.addressof(code), ctypes.addressof(license)) + bytes(100)
attempt("a program", call, "bpf", 5, ctypes.create_string_buffer(wanted), 72)
event = ctypes.create_string_buffer(struct.pack("=II", 1, 112) + bytes(104))
attempt("events of a processor", call, "perf_event_open", event, -1, 0, -1, 0)
attempt("own events", call, "perf_event_open", event, 0, -1, -1, 0)
""",
        NO_CALL,
        controls=False,
        root=True,
    ),
    Attack(
        "stops the kernel in the middle of a copy with userfaultfd",
        """
attempt("userfaultfd", call, "userfaultfd", 0)
attempt("userfaultfd, user faults alone", call, "userfaultfd", 1)
attempt("by its device", os.open, "/dev/userfaultfd", os.O_RDWR)
""",
        NO_CALL | ABSENT,
        controls=False,
    ),
    Attack(
        "goes round the filter with io_uring",
        """
attempt("io_uring", call, "io_uring_setup", 4, ctypes.create_string_buffer(120))
""",
        NO_CALL,
        controls=False,
    ),
    Attack(
        "goes round the filter with calls of other architectures",
        """
# `int 0x80` calls the kernel as a 32-bit program, with other numbers: 20 is getpid, 310 is unshare, 288 is keyctl.
import mmap
def old(number, first):
    code = b"\\x53\\xb8" + struct.pack("=I", number) + b"\\xbb" + struct.pack("=I", first) + b"\\xcd\\x80\\x5b\\xc3"
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
def outcome(number, first=0):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, str(old(number, first)).encode())
        os._exit(0)
    _, how = os.waitpid(pid, 0)
    return "KILLED" if os.WIFSIGNALED(how) and os.WTERMSIG(how) in (signal.SIGSYS, signal.SIGSEGV) else int(os.read(reader, 20))
control("a 32-bit getpid", outcome(20) == "KILLED" or outcome(20) > 0)
for name, number, first in (("a user namespace", 310, 0x10000000), ("keys", 288, 0), ("host name", 74, 0), ("mount", 21, 0)):
    got = outcome(number, first)
    found("32-bit: " + name, got != "KILLED" and got >= 0, got if got == "KILLED" else errno.errorcode.get(-got, str(got)))
for name in ("sethostname", "keyctl", "unshare"):
    try:
        libc.syscall(ctypes.c_long(0x40000000 | CALLS[name][0]), ctypes.c_long(0x10000000 if name == "unshare" else 0), ctypes.c_long(0))
        found("x32: " + name, ctypes.get_errno() == 0, errno.errorcode.get(ctypes.get_errno()))
    except OSError as error:
        say("refused", "x32: " + name, errno.errorcode[error.errno])
""",
        NO_CALL | {"KILLED", "EFAULT"},
        root=True,
    ),
    Attack(
        "maps the page at address zero, where the kernel's faults lead",
        """
import mmap
libc.mmap.restype = ctypes.c_void_p
def at(address):
    place = libc.mmap(ctypes.c_void_p(address), ctypes.c_size_t(4096), 3, 0x32, -1, ctypes.c_long(0))
    if place == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "")
    return place or 0
control("another page", at(0x10000000) == 0x10000000)
libc.personality(ctypes.c_ulong(0x0100000))
attempt("page zero", at, 0)
""",
    ),
    Attack(
        "reaches the processor's ports and other processes' pages",
        """
for name, number in (("iopl", 172), ("ioperm", 173)) if X86_64 else ():
    def gate():
        if libc.syscall(ctypes.c_long(number), ctypes.c_long(3), ctypes.c_long(1), ctypes.c_long(1)) < 0:
            raise OSError(ctypes.get_errno(), "")
    attempt(name, gate)
attempt("pages of the resident", call, "move_pages", 1, 1, ctypes.create_string_buffer(8), 0, ctypes.create_string_buffer(8), 0)
""",
        NO_CALL,
        controls=False,
    ),
]
ATTACKS = [
    attack
    for attack in (*MOUNTS, *WRITES, *RIGHTS, *MACHINE)
    if platform.machine() == "x86_64" or "architectures" not in attack.name
]


@everywhere(ATTACKS)
async def test_the_kernels_gates_are_shut(world: World, attack: Attack) -> None:
    await world.withstands(attack)
