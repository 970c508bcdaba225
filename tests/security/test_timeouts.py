"""Attacks on the time-out of a command: whatever it does to be missed, nothing that it started outlives it.

That nothing is left is looked at from the host. Each program says `ready` once its trick is in place, so that none of
them counts that did not come to it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from .attack import text_of
from .conftest import each_provider, everywhere
from .world import World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]
TIMEOUTS_S = (0.5, 2.0, 6.0)
"""On a slow machine a trick may need longer to be in place."""
SPIN = """
def spin():
    while True:
        time.sleep(0.05)
def ready():
    open("/workspace/ready", "w").close()
"""


@dataclass(frozen=True)
class Trick:
    """How a command tries to outlive its time-out."""

    name: str
    program: str
    root: bool = False
    only: frozenset[str] = frozenset()
    in_shells: bool = False
    """Whether it is also tried in a shell that lives across commands."""

    def __str__(self) -> str:
        return self.name


TRICKS = [
    Trick("moves to a session of its own", "if os.fork() == 0:\n    os.setsid()\n    ready()\n    spin()\nspin()"),
    Trick(
        "forks twice and lets go of its parents, holding its output",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        ready()\n        spin()\n    "
        "os._exit(0)\nspin()",
        in_shells=True,
    ),
    Trick(
        "ignores every signal that it can",
        """
for number in range(1, 65):
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_IGN)
os.fork()
ready()
spin()
""",
    ),
    Trick(
        "stops itself and its children", "os.fork()\nready()\nos.fork()\nos.kill(os.getpid(), signal.SIGSTOP)\nspin()"
    ),
    Trick(
        "is stopped by a tracer",
        """
own = child(spin)
other = os.fork()
if other == 0:
    with contextlib.suppress(OSError):
        call("ptrace", 16, own, 0, 0)
        os.waitpid(own, 0)
    ready()
    spin()
spin()
""",
    ),
    Trick(
        "waits for a child that waits for a pipe, as deep in the kernel as it gets",
        """
os.mkfifo("/workspace/pipe")
if os.fork() == 0:
    ready()
    opening = (os.POSIX_SPAWN_OPEN, 3, "/workspace/pipe", os.O_RDONLY, 0)
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[opening])
os.open("/workspace/pipe2" if os.path.exists("/workspace/pipe2") else "/workspace/pipe", os.O_RDONLY)
""",
    ),
    Trick(
        "runs away by forking, each process living but for a moment",
        """
ready()
def run():
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()
if os.fork() == 0:
    run()
if os.fork() == 0:
    run()
spin()
""",
        in_shells=True,
    ),
    Trick(
        "stops being the one that adopts its orphans",
        """
libc.prctl(36, 0, 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(0.2)  # it is an orphan by then
        ready()
        spin()
    os._exit(0)
spin()
""",
        root=True,
        in_shells=True,
    ),
    Trick(
        "makes children of its parent",
        """
CLONE_PARENT = 0x8000
wanted = ctypes.create_string_buffer(struct.pack("=QQQQQQQQ", CLONE_PARENT, 0, 0, 0, 17, 0, 0, 0))
for made in (lambda: call("clone", CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0),
             lambda: call("clone3", wanted, 64)):
    with contextlib.suppress(OSError):
        if made() == 0:
            os.setsid()
            ready()
            spin()
ready()
spin()
""",
        in_shells=True,
    ),
    Trick(
        "lets its first thread end",
        """
import threading
if os.fork() == 0:
    os.setsid()
    threading.Thread(target=spin).start()
    ready()
    libc.syscall(ctypes.c_long(60 if X86_64 else 93), ctypes.c_long(0))  # of this thread alone
spin()
""",
        in_shells=True,
    ),
    Trick(
        "has the name of one that is dead",
        """
libc.prctl(15, b") Z 0 0 0 0", 0, 0, 0)
if os.fork() == 0:
    libc.prctl(15, b"x) Z 1 1 1", 0, 0, 0)
    ready()
    spin()
spin()
""",
    ),
    Trick(
        "changes groups and sessions all the time, in many processes",
        """
for _ in range(20):
    if os.fork() == 0:
        with contextlib.suppress(OSError):
            os.setsid()
        while True:
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
            ready()
            time.sleep(0.01)
spin()
""",
    ),
    Trick(
        "closes its output, and ends its shell's", "for fd in (0, 1, 2):\n    os.close(fd)\nos.fork()\nready()\nspin()"
    ),
    Trick(
        "kills what would kill it",
        """
ready()
if os.fork() == 0:
    while True:
        for pid in (1, os.getppid()):
            for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGCHLD):
                with contextlib.suppress(OSError):
                    if pid != os.getpid():
                        os.kill(1, number)
        time.sleep(0.001)
spin()
""",
    ),
]


@everywhere(TRICKS)
async def test_a_time_out_ends_everything(world: World, attack: Trick) -> None:
    async with world.arena() as scene:
        await scene.box.exec("sleep 300 >/dev/null 2>&1 &")
        kept = frozenset(scene.processes())
        text = text_of(SPIN + attack.program, world.facts(scene))
        for timeout_s in TIMEOUTS_S:
            began = time.monotonic()
            result = await scene.box.exec("exec python3 -", stdin=text, timeout_s=timeout_s)
            assert result.timed_out, result
            assert time.monotonic() - began < timeout_s + 20
            assert await scene.left(kept) == [], "These outlived the command that started them."
            assert kept <= set(scene.processes()), "What an earlier command left behind is not touched."
            if (await scene.box.exec("ls ready")).exit_code == 0:
                return
        raise AssertionError(f"The trick did not come to it: {result.output}")


@each_provider()
async def test_in_a_shell_that_stays_nothing_outlives_its_command(world: World) -> None:
    async with world.arena() as scene, await scene.box.open_shell() as shell:
        await shell.run("sleep 300 >/dev/null 2>&1 & export KEPT=1")
        kept = frozenset(scene.processes())
        for trick in (each for each in TRICKS if each.in_shells):
            text = text_of(SPIN + trick.program, world.facts(scene))
            await scene.box.upload({"trick.py": text})
            for timeout_s in TIMEOUTS_S:
                result = await shell.run("rm -f ready pipe; python3 -I -S trick.py", timeout_s=timeout_s)
                assert result.timed_out, trick.name
                assert await scene.left(kept) == [], f"These outlived their command: {trick.name}"
                if (await shell.run("ls ready")).exit_code == 0:
                    break
            else:
                raise AssertionError(f"The trick did not come to it: {trick.name}: {result.output}")
            assert kept <= set(scene.processes()), "What an earlier command left behind is not touched."
        assert (await shell.run("echo $KEPT; jobs")).stdout.startswith(b"1\n[1]")


@each_provider()
async def test_a_shells_jobs_end_with_the_time_out(world: World) -> None:
    commands = (
        "setsid sleep 301 & sleep 302",
        "nohup sleep 303 & sleep 304",
        "(trap '' TERM HUP INT; sleep 305; sleep 306) & wait",
        "sh -c 'kill -STOP $$' & sleep 307",
        "mkfifo p; (cat p; sleep 308)",
        "exec sleep 309",
        "while :; do (sleep 310 &); sleep .1; done",
    )
    async with world.arena() as scene:
        for command in commands:
            result = await scene.box.exec(command, timeout_s=0.4)
            assert result.timed_out, command
            assert await scene.left() == [], command
