"""What an attack's program has at hand inside a sandbox. This text is put before the program; nothing imports it.

A program says what it did in lines of two or three fields, which `attack.py` reads. It first shows that its tool works
where it may (`control`), then tries what must fail (`attempt`), and shows what it could read (`reveal`): the test looks
for other people's secrets in that. A program that is wrong ends with an exception, which is no success of the sandbox.
"""

# ruff: noqa: F401  # the programs use them
import contextlib
import ctypes
import errno
import os
import platform
import signal
import socket
import struct
import sys
import time

FACTS = {}  # what it may know of the host and of the other sandbox: names and places, never a secret
X86_64 = platform.machine() == "x86_64"
CALLS = {  # name: (x86_64, aarch64)
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "capset": (126, 91),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "inotify_init1": (294, 26),
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "sched_setattr": (314, 274),
    "seccomp": (317, 277),
    "semget": (64, 190),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmat": (30, 196),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "timer_create": (222, 107),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def call(name, *values):
    """A system call. Raises `OSError` as Python's own do."""
    number = CALLS[name][0 if X86_64 else 1]
    wide = [ctypes.c_long(v) if isinstance(v, int) else v for v in values]
    result = libc.syscall(ctypes.c_long(number), *wide)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def say(*fields):
    print("\t".join(str(field) for field in fields), flush=True)


def control(what, holds=True):
    """The tool works: this is what it does where it may."""
    say("control" if holds else "broken", what)


def tool(what, action, *values):
    """The tool works, or is refused altogether, to everybody."""
    try:
        control(what, action(*values))
    except OSError as error:
        control(f"{what}: refused altogether", error.errno in (errno.EPERM, errno.ENOSYS))


def attempt(what, action, *values):
    """Try what must be refused; what it gave, or None."""
    try:
        result = action(*values)
    except OSError as error:
        say("refused", what, errno.errorcode.get(error.errno, str(error)))
        return None
    say("did", what)
    return result if result is not None else True


def found(what, holds, reason="NOTHING"):
    """Say whether something was found that must not be there."""
    say(*(("did", what) if holds else ("refused", what, reason)))


def reveal(data):
    """Show what could be read."""
    text = data.decode("latin-1") if isinstance(data, bytes) else str(data)
    for line in text.replace("\0", "\n").split("\n"):
        if line.strip():
            say("read", line.replace("\t", " "))


def read(path, size=1 << 16):
    """Read a file. An empty one that should not be counts as refused."""
    with open(path, "rb", buffering=0) as file:
        data = file.read(size)
    if not data:
        raise OSError(errno.ENODATA, "empty")
    reveal(data)
    return data


def write(path, data):
    """Write to a file that is there."""
    fd = os.open(path, os.O_WRONLY)
    try:
        return os.write(fd, data)
    finally:
        os.close(fd)


def child(action=signal.pause):
    """A process of its own that does something, then ends."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            action()
        os._exit(0)
    return pid


def in_child(what, action, *values):
    """`attempt` in a process of its own, which the kernel may have to kill."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            write("/proc/self/oom_score_adj", b"1000")  # it is what the kernel shall kill, whatever it counts as whose
            action(*values)
            os.write(writer, b"did")
        except MemoryError:
            os.write(writer, b"ENOMEM")
        except OSError as error:
            os.write(writer, errno.errorcode[error.errno].encode())
        finally:
            os._exit(0)
    os.close(writer)
    _, how = os.waitpid(pid, 0)
    answer = os.read(reader, 20).decode()
    os.close(reader)
    found(what, answer == "did", "KILLED" if os.WIFSIGNALED(how) else answer)


def in_background(action):
    """A process that does something and then stays, while this one goes on when it is done."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        for fd in (0, 1, 2):
            os.dup2(os.open("/dev/null", os.O_RDWR), fd)
        with contextlib.suppress(OSError, MemoryError):
            action()
        os.write(writer, b"x")
        signal.pause()
    os.read(reader, 1)


def end(*pids):
    """Kill and collect processes of its own."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def status(name, pid="self"):
    """A line of /proc/PID/status."""
    with open(f"/proc/{pid}/status") as lines:
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(name + ":"))


def in_a_network_of_its_own():
    """Nothing but a loopback is here, and another network than the host's: so no packet can leave."""
    with open("/proc/net/dev") as lines:
        links = [line.split(":")[0].strip() for line in lines if ":" in line]
    return links == ["lo"] and os.readlink("/proc/self/ns/net") != FACTS["namespaces"]["net"]
