"""Attacks that want more rights: other users, capabilities, set-uid programs, limits, priority."""

from __future__ import annotations

import pytest

from .attack import ABSENT, DENIED, NO_CALL, Attack
from .conftest import everywhere
from .world import World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]
ATTACKS = [
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
    sets = [bits & 0xFFFFFFFF for bits in (effective, permitted, inheritable)]
    data = ctypes.create_string_buffer(struct.pack("=IIIIII", *sets, 0, 0, 0))
    call("capset", header, data)
def raise_ambient(number):
    if libc.prctl(47, 2, number, 0, 0):
        raise OSError(ctypes.get_errno(), "")
have = int(status("CapPrm"), 16)
take(have, have, 0)
control("those that it has")
# SYS_ADMIN NET_ADMIN NET_RAW SYS_MODULE RAWIO PTRACE BOOT TIME DAC_READ_SEARCH RESOURCE
for number in (21, 12, 13, 16, 17, 19, 22, 25, 2, 24):
    attempt(f"capability {number}", take, 1 << number, 1 << number, 0)
    attempt(f"ambient {number}", raise_ambient, number)
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
ask = [f"/proc/self/fd/{image}", "-c", "grep ^Uid /proc/self/status"]
done = subprocess.run(ask, capture_output=True, text=True, pass_fds=[image])
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
for command in (["su", "-c", "id -u"], ["sudo", "-n", "id", "-u"], ["newgrp", "root"], ["sg", "root", "id -u"],
                ["pkexec", "id", "-u"], ["doas", "id", "-u"], ["mount", "-t", "tmpfs", "x", "/tmp"],
                ["chsh", "-s", "/tmp/x"], ["fusermount", "/tmp"],
                ["ping", "-c1", "-W1", "127.0.0.1"]):
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
            ask = ["grep", "^Uid", "/proc/self/status"]
            done = subprocess.run(ask, executable="/bin/grep", capture_output=True, text=True)
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
code = struct.pack("=HBBIHBBIHBBIHBBI", 0x20, 0, 0, 0, 0x15, 0, 1, number, 0x06, 0, 0, 0x7FC00000,
                   0x06, 0, 0, 0x7FFF0000)
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
before = os.getpriority(os.PRIO_PROCESS, 0)
os.nice(1)
control("nicer", os.getpriority(os.PRIO_PROCESS, 0) == before + 1)
attempt("less nice", os.setpriority, os.PRIO_PROCESS, 0, -20)
for policy in (os.SCHED_FIFO, os.SCHED_RR):
    attempt(f"policy {policy}", os.sched_setscheduler, 0, policy, os.sched_param(50))
deadline = ctypes.create_string_buffer(struct.pack("=IIQiIQQQ", 48, 6, 0, 0, 0, 10**7, 10**8, 10**8))
attempt("deadlines", call, "sched_setattr", 0, deadline, 0)
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


@everywhere(ATTACKS)
async def test_no_rights_are_gained(world: World, attack: Attack) -> None:
    await world.withstands(attack)
