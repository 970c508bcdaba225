"""Attacks on what belongs to the whole machine: modules, clocks, names, programs in the kernel, and ways round its
filter.

Where one could change the machine if it were not refused, it asks for what is so already (the same time, the same
name)."""

from __future__ import annotations

import platform

import pytest

from .attack import ABSENT, NO_CALL, Attack
from .conftest import everywhere
from .world import World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

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
moment = ctypes.create_string_buffer(struct.pack("=qq", now // 10**9, now % 10**9 // 1000))
attempt("settimeofday", call, "settimeofday", moment, 0)
state = ctypes.create_string_buffer(256)
fields = struct.pack("=IIqqqqIIqqqqqq", 0x4000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10000)
tick = ctypes.create_string_buffer(fields + bytes(160))
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
    killed = os.WIFSIGNALED(how) and os.WTERMSIG(how) in (signal.SIGSYS, signal.SIGSEGV)
    return "KILLED" if killed else int(os.read(reader, 20))
control("a 32-bit getpid", outcome(20) == "KILLED" or outcome(20) > 0)
for name, number, first in (("a user namespace", 310, 0x10000000), ("keys", 288, 0), ("host name", 74, 0),
                            ("mount", 21, 0)):
    got = outcome(number, first)
    answer = got if got == "KILLED" else errno.errorcode.get(-got, str(got))
    found("32-bit: " + name, got != "KILLED" and got >= 0, answer)
for name in ("sethostname", "keyctl", "unshare"):
    try:
        first = ctypes.c_long(0x10000000 if name == "unshare" else 0)
        libc.syscall(ctypes.c_long(0x40000000 | CALLS[name][0]), first, ctypes.c_long(0))
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
free = 0x100000000000  # above every heap, below every library
control("another page", at(free) == free)
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
pages, status = ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
attempt("pages of the resident", call, "move_pages", 1, 1, pages, 0, status, 0)
""",
        NO_CALL,
        controls=False,
    ),
]
ATTACKS = [attack for attack in MACHINE if platform.machine() == "x86_64" or "architectures" not in attack.name]


@everywhere(ATTACKS)
async def test_the_machine_is_not_the_agents(world: World, attack: Attack) -> None:
    await world.withstands(attack)
