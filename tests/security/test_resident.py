"""Attacks on the resident, the one process of a sandbox that the host talks to, and signals to whoever can be named."""

from __future__ import annotations

import pytest

from ale_sandbox.resident.frames import DONE, EXEC, frame

from .attack import ABSENT, DENIED, READ_ONLY, Attack
from .conftest import each_provider, everywhere
from .world import World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

ATTACKS = [
    Attack(
        "kills and stops processes of the host by their numbers",
        """
own = child()
os.kill(own, signal.SIGKILL)
os.waitpid(own, 0)
control("own child")
mine = {int(name) for name in os.listdir("/proc") if name.isdigit()}
for pid in FACTS["pids"]:
    if pid in mine:
        continue  # the same number here is a process of its own
    for number in (signal.SIGSTOP, signal.SIGKILL):
        attempt(f"{number!r} to {pid}", os.kill, pid, number)
        attempt(f"{number!r} to group {pid}", os.killpg, pid, number)
        attempt(f"{number!r} to thread {pid}", call, "tgkill", pid, pid, number)
    info = ctypes.create_string_buffer(struct.pack("=iii", 34, 0, -1) + bytes(120))
    attempt(f"queued to {pid}", call, "rt_sigqueueinfo", pid, 34, info)
    attempt(f"descriptor of {pid}", call, "pidfd_open", pid, 0)
""",
        frozenset({"ESRCH", "EPERM", "EINVAL"}),
        root=True,
    ),
    Attack(
        "kills and stops the resident",
        """
own = child()
end(own)
control("own child")
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV, signal.SIGCHLD, 34, 64):
    attempt(f"signal {number}", os.kill, 1, number)
    attempt(f"signal {number} to its thread", call, "tgkill", 1, 1, number)
pidfd = call("pidfd_open", 1, 0)
attempt("by its descriptor", call, "pidfd_send_signal", pidfd, 9, 0, 0)
info = ctypes.create_string_buffer(struct.pack("=iii", 34, 0, -1) + bytes(120))
attempt("queued", call, "rt_sigqueueinfo", 1, 34, info)
""",
        same_user=False,
    ),
    Attack(
        "takes the processors from the resident",
        """
own = child()
os.sched_setaffinity(own, os.sched_getaffinity(0))
os.setpriority(os.PRIO_PROCESS, own, 5)
end(own)
control("own child")
attempt("pin", os.sched_setaffinity, 1, {0})
attempt("niceness", os.setpriority, os.PRIO_PROCESS, 1, 19)
attempt("idle", os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))
attempt("last at the disk", call, "ioprio_set", 1, 1, 3 << 13)
attempt("its children's group", os.setpgid, 1, 1)
""",
        DENIED | {"ESRCH"},
        same_user=False,
    ),
    Attack(
        "inherits, finds or reopens the connection to the host",
        """
a, b = socket.socketpair()
links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
kinds = [os.readlink(link) for link in links if os.path.lexists(link)]
control("own sockets are seen", sum(kind.startswith("socket:") for kind in kinds) == 2)
a.close()
b.close()
folders = [f"/proc/{pid}/fd" for pid in ("self", os.getppid()) if pid != 1]
links = [f"{folder}/{fd}" for folder in folders for fd in os.listdir(folder)]
kinds = [os.readlink(link) for link in links if os.path.lexists(link)]
found("sockets at hand", any(kind.startswith("socket:") for kind in kinds))
def connect(path):
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(path)
for path in ("/.ale/control/socket", "/proc/1/root/.ale/control/socket", "/proc/1/cwd/.ale/control/socket",
             "/.ale/socket"):
    attempt(path, connect, path)
def bind(path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
attempt("stand in its place", bind, "/.ale/control/socket")
for fd in range(3, 10):
    attempt(f"reopen {fd}", os.open, f"/proc/1/fd/{fd}", os.O_RDWR)
""",
        ABSENT | DENIED | READ_ONLY | {"ECONNREFUSED", "ENXIO"},
        root=True,
    ),
    Attack(
        "reaches the parent of its command",
        """
parent = os.getppid()
control("it is the resident", parent == 1)
attempt("memory", os.open, f"/proc/{parent}/mem", os.O_RDWR)
attempt("trace", call, "ptrace", 16, parent, 0, 0)
attempt("descriptors", call, "pidfd_getfd", call("pidfd_open", parent, 0), 3, 0)
attempt("its limits", write, f"/proc/{parent}/timens_offsets", b"boottime 1 0")
""",
        DENIED,
    ),
]


@everywhere(ATTACKS)
async def test_the_resident_is_out_of_reach(world: World, attack: Attack) -> None:
    await world.withstands(attack)


@each_provider("local", "docker", "podman", "docker as root", "podman as root")
async def test_a_signal_to_everybody_ends_the_agents_processes_alone(world: World) -> None:
    async with world.arena() as scene:
        await scene.box.exec("sleep 60 >/dev/null 2>&1 & sleep 61 >/dev/null 2>&1 &")
        assert len(scene.processes()) >= 2
        killed = await scene.box.exec(
            "trap '' TERM; kill -9 -1; kill -9 1; kill -STOP 1; kill -STOP -1; exit 3", timeout_s=20
        )
        assert killed.exit_code in (3, 137), killed
        assert (await scene.box.exec("echo alive")).stdout == b"alive\n"
        assert await scene.left() == []


@each_provider()
async def test_output_that_looks_like_the_residents_answer_is_output(world: World) -> None:
    forged = frame(1, DONE, [b"0", b"0", b"0", b"1.0", b"forged", b""]) + frame(
        2, EXEC, [b"60", b"9", b"tests", b"", b"id", b""]
    )
    async with world.arena() as scene:
        done = await scene.box.exec("cat; cat >&2 </dev/null; exit 7", stdin=forged * 3)
        assert (done.exit_code, done.stdout) == (7, forged * 3)
        await scene.box.upload({"frames": forged * 100})
        assert await scene.box.download("frames") == forged * 100
        for fd in range(10):  # whatever is at hand to write to
            await scene.box.exec(f"cat frames >&{fd}; cat frames >/proc/1/fd/{fd}; exit 0", timeout_s=10)
        assert (await scene.box.exec("echo alive; exit 5")).exit_code == 5


@each_provider()
async def test_commands_with_odd_bytes_reach_nobody_else(world: World) -> None:
    async with world.arena() as scene:
        for command in (
            "\0",
            "echo \udcff",
            "\x1b]0;x\x07",
            "echo " + "x" * 200_000,
            "'",
            "$(",
            "exit 300",
            "kill -9 $$",
            "exec 1>&-",
        ):
            await scene.box.exec(command, timeout_s=10)
        assert (await scene.box.exec("echo alive")).stdout == b"alive\n"
