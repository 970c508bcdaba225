"""Attacks that use everything up: processes, memory in all its forms, disk, descriptors, and the kernel's counters.

The limits are seen from the host before any of them runs (`World.guarded`), and are small.
"""

from __future__ import annotations

import asyncio
import resource
import time
from pathlib import Path

import pytest

from ale.errors import SandboxError
from ale.specs.sandbox import Resources

from .attack import Attack, judge
from .conftest import each_provider, everywhere
from .world import World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]
LOCAL = frozenset({"local"})
FULL = frozenset({"KILLED", "ENOMEM", "ENOSPC", "EAGAIN", "EDQUOT", "EPERM", "ENOBUFS"})
MEMORY = """
import mmap
LIMIT = 400 << 20
def touch(memory):
    for at in range(0, LIMIT, 4096):
        memory[at] = 1
small = mmap.mmap(-1, 4 << 20)
small[0] = small[(4 << 20) - 1] = 1
control("a little of it")
def fill(fd):
    block = bytes(1 << 20)
    for _ in range(LIMIT >> 20):
        if os.write(fd, block) < len(block):
            raise OSError(errno.ENOSPC, "")
"""
BOMBS = [
    Attack(
        "forks until it cannot",
        "control('one', end(child()) is None)\nattempt('400 processes', lambda: [child() for _ in range(400)])",
        FULL,
    ),
    Attack(
        "starts threads until it cannot",
        """
import threading
stop = threading.Event()
def start():
    try:
        threading.Thread(target=stop.wait, daemon=True).start()
    except RuntimeError:
        raise BlockingIOError(errno.EAGAIN, "")
start()
control("one")
attempt("400 threads", lambda: [start() for _ in range(400)])
os._exit(0)
""",
        FULL,
    ),
    Attack(
        "leaves zombies until there is no room for the living",
        "end(child())\ncontrol('one')\nattempt('400 zombies', lambda: [child(lambda: None) for _ in range(400)])",
        FULL,
    ),
    Attack(
        "takes memory until it is killed", MEMORY + 'in_child("400 MiB", lambda: touch(mmap.mmap(-1, LIMIT)))', FULL
    ),
    Attack(
        "takes memory that is shared and has no name",
        MEMORY + 'in_child("400 MiB", lambda: fill(os.memfd_create("x")))',
        FULL,
    ),
    Attack(
        "takes memory that is a file",
        MEMORY
        + 'for path in ("/dev/shm/x", "/run/lock/x"):\n    in_child(path, lambda: fill(os.open(path, os.O_CREAT | '
        "os.O_WRONLY)))",
        FULL | {"ENOENT", "EACCES", "EROFS"},
    ),
    Attack(
        "takes memory by System V segments that outlive their processes",
        MEMORY
        + """
libc.shmat.restype = ctypes.c_void_p
def segments():
    for _ in range(LIMIT >> 22):
        place = libc.shmat(call("shmget", 0, 4 << 20, 0o1600), None, 0)
        ctypes.memset(place, 1, 4 << 20)
in_child("400 MiB", segments)
""",
        FULL,
    ),
    Attack(
        "locks memory",
        MEMORY
        + """
def lock():
    memory = mmap.mmap(-1, LIMIT)
    if libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory))), ctypes.c_size_t(LIMIT)):
        raise OSError(ctypes.get_errno(), "")
in_child("400 MiB", lock)
""",
        FULL,
    ),
    Attack(
        "takes memory of the kernel by pipes and sockets",
        MEMORY
        + """
import fcntl, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
def pipes():
    held = 0
    while held < LIMIT:
        _, writer = os.pipe()
        with contextlib.suppress(PermissionError):
            fcntl.fcntl(writer, 1031, 1 << 20)
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                held += os.write(writer, bytes(1 << 16))
keep = []
def unix():
    held = 0
    while held < LIMIT:
        a, b = socket.socketpair()
        a.setblocking(False)
        keep.append((a, b))
        with contextlib.suppress(BlockingIOError):
            while True:
                held += a.send(bytes(1 << 16))
in_child("pipes", pipes)
in_child("sockets", unix)
""",
        FULL | {"EMFILE", "ENFILE"},
    ),
    Attack(
        "takes memory of the kernel by connections that nobody reads",
        MEMORY
        + """
# Beyond the limit, and little enough that this machine does not mind where the attack succeeds.
def fill_connections():
    listening, keep, held = socket.create_server(("127.0.0.1", 0), backlog=256), [], 0
    while held < (300 << 20):
        sender = socket.create_connection(listening.getsockname())
        receiver, _ = listening.accept()
        keep += (sender, receiver)
        sender.setblocking(False)
        quiet = 0
        while quiet < 3:
            try:
                held += sender.send(bytes(1 << 18))
                quiet = 0
            except BlockingIOError:
                quiet += 1
                time.sleep(0.001)
        if len(keep) > 600:
            raise OSError(errno.ENOBUFS, "the buffers stay small")
    time.sleep(0.1)
in_child("300 MiB in 200 MiB", fill_connections)
""",
        FULL,
        # Version 1 of control groups counts what lies in connections apart, and no container engine sets that limit.
        only=LOCAL if Path("/sys/fs/cgroup/memory").is_dir() else frozenset(),
    ),
    Attack(
        "opens files until it cannot",
        """
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
control("there is a limit", 0 < hard < 1 << 20)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
in_child("all of them", lambda: [os.open("/dev/null", os.O_RDONLY) for _ in range(hard + 1)])
""",
        frozenset({"EMFILE", "ENFILE", "KILLED"}),
    ),
    Attack(
        "gives programs more arguments than the kernel takes",
        """
control("a few", os.waitpid(os.posix_spawn("/bin/true", ["true", "x" * 1000], {}), 0)[1] == 0)
attempt("one long one", os.execve, "/bin/true", ["true", "x" * (1 << 20)], {})
attempt("many", os.execve, "/bin/true", ["true"] + ["x" * 1000] * 20000, {})
attempt("a large environment", os.execve, "/bin/true", ["true"], {"x" * 100 + str(n): "y" * 100000 for n in range(100)})
""",
        frozenset({"E2BIG"}),
    ),
    Attack(
        "nests folders as deep as they go",
        """
os.chdir("/workspace")
os.mkdir("down")
control("one", os.path.isdir("down"))
name = "d" * 100
for depth in range(1500):
    os.mkdir(name)
    os.chdir(name)
open("at the bottom", "w").close()
attempt("its whole path", os.listdir, "/workspace/" + "/".join([name] * 1500))
""",
        frozenset({"ENAMETOOLONG"}),
    ),
    Attack(
        "claims files larger than any disk",
        """
fd = os.open("/dev/shm/huge", os.O_CREAT | os.O_RDWR)
os.truncate(fd, 1 << 20)
control("a small one", os.fstat(fd).st_size == 1 << 20)
attempt("allocate 1 TiB", os.posix_fallocate, fd, 0, 1 << 40)
in_child("write them", lambda: [os.pwrite(fd, bytes(1 << 20), n << 20) for n in range(400)])
""",
        FULL | {"EFBIG"},
    ),
]


async def answers_all_along(world: World, done: asyncio.Event) -> None:
    """The sibling does its work while the attack goes on."""
    while not done.is_set():
        assert (await world.sibling.exec("echo here", timeout_s=20)).stdout == b"here\n"
        await asyncio.sleep(0.1)


@everywhere(BOMBS)
async def test_a_bomb_hits_its_own_sandbox_alone(world: World, attack: Attack) -> None:
    async with world.arena() as scene:
        done = asyncio.Event()
        sibling = asyncio.ensure_future(answers_all_along(world, done))
        try:
            judge(attack, await scene.run(attack.program))
            assert len(scene.processes()) <= 100
            await scene.box.kill_agent_processes()
            assert (await scene.box.exec("echo alive")).stdout == b"alive\n"
            assert await scene.left() == []
        finally:
            done.set()
            await sibling


@each_provider()
async def test_spinning_forks_end_with_their_command(world: World) -> None:
    async with world.arena() as scene:
        bombs = "f() { f | f & }; f; while :; do (sleep 0 & sleep 0 &); done"
        result = await scene.box.exec(bombs, timeout_s=1.0)
        assert result.timed_out
        await scene.box.kill_agent_processes()
        assert await scene.left() == []
        assert (await scene.box.exec("echo alive")).stdout == b"alive\n"


@each_provider()
async def test_a_hog_gets_its_share_and_the_sibling_its_own(world: World) -> None:
    async with world.arena() as scene:
        await scene.box.exec(
            "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done >/dev/null 2>&1; nice -n 19 true"
        )
        began, before = time.monotonic(), (await scene.box.stats()).cpu_s
        for _ in range(10):
            assert (await world.sibling.exec("echo here", timeout_s=20)).stdout == b"here\n"
            assert (await scene.box.exec("echo here too", timeout_s=20)).stdout == b"here too\n"
            await asyncio.sleep(0.05)
        used, passed = (await scene.box.stats()).cpu_s, time.monotonic() - began
        assert before is not None
        assert used is not None
        assert used - before <= 1.0 * passed * 1.3 + 0.3, (
            f"It has one processor, and used {used - before:.2f} s in {passed:.2f} s."
        )


@each_provider()
async def test_a_flood_of_output_takes_no_memory_here(world: World) -> None:
    async with world.arena() as scene:
        before = own_memory()
        flood = await scene.box.exec("head -c 300000000 /dev/zero; head -c 50000000 /dev/zero >&2", timeout_s=60)
        assert (len(flood.stdout), len(flood.stderr), flood.truncated) == (1 << 20, 1 << 20, True)
        await scene.box.exec("(while :; do echo flood; done) & exit 0", timeout_s=20)
        assert (await scene.box.exec("echo alive")).stdout == b"alive\n"
        assert own_memory() - before < 64 << 20


@each_provider()
async def test_files_without_an_end_are_not_downloaded(world: World) -> None:
    async with world.arena() as scene:
        before = own_memory()
        await scene.box.exec(
            "truncate -s 1T huge; mkfifo pipe; ln -s loop loop; ln -s /dev/zero zero; ln -s /proc/self/pagemap map; "
            "mkdir d"
        )
        for path in ("huge", "pipe", "loop", "zero", "map", "/dev/random", "/proc/kmsg", "/dev/ptmx"):
            with pytest.raises((SandboxError, OSError, ValueError)):
                await asyncio.wait_for(scene.box.download(path, max_bytes=1 << 20), 20)
        assert own_memory() - before < 64 << 20
        assert (await scene.box.exec("echo alive")).stdout == b"alive\n"


@each_provider()
async def test_a_full_disk_is_the_sandboxs_own(world: World) -> None:
    """Containers can limit the disk of the default image alone, which has no Python."""
    spec = world.spec(Resources(memory_mib=200, pids=100, disk_mib=8), image=None)
    async with world.arena(spec) as scene:
        for folder in ("/workspace", "/tmp", "$HOME", "/dev/shm", "/var/tmp", "/"):
            result = await scene.box.exec(f"head -c 100M /dev/zero > {folder}/full; stat -c %s {folder}/full")
            sizes = result.stdout.split()
            assert not sizes or int(sizes[0]) <= 70 << 20, (folder, sizes)
            assert (
                b"No space" in result.stderr
                or b"Read-only" in result.stderr
                or b"denied" in result.stderr
                or b"No such" in result.stderr
            ), result
        await scene.box.exec("rm -f /dev/shm/full")
        assert (await scene.box.exec("echo alive")).stdout == b"alive\n"


@each_provider()
async def test_more_files_than_there_is_room_for_take_no_room_of_the_host(world: World) -> None:
    spec = world.spec(Resources(memory_mib=48, pids=100, disk_mib=8), image=None)
    async with world.arena(spec) as scene:
        program = "mkdir d && cd d && seq 100000 | xargs touch 2>&1; ls | wc -l"
        try:
            result = await scene.box.exec(program, timeout_s=30)
            assert int((result.stdout.split() or [b"0"])[-1]) < 100_000, result
        except SandboxError:
            pass  # it took its own sandbox along, which is its own loss


def own_memory() -> int:
    """What this process holds in memory, bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
