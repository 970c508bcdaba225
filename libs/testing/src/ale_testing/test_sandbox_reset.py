"""These tests check `Resets`: after a reset a sandbox is like a new one, or the reset reports that it is not."""

from __future__ import annotations

import asyncio

import pytest

from ale.config.capabilities import has_now
from ale.errors import AleError, ConfigError, SandboxError
from ale.specs.sandbox import TESTS, Sandbox, SandboxProvider
from ale.specs.sandbox_protocols import Resets, Shells
from ale_testing.async_tests import async_test, fails_with
from ale_testing.plugin_under_test import Subject
from ale_testing.sandbox_setup import LOOP, spec, started

needs_resets = pytest.mark.ale_needs.with_args(Resets)

LOOK = """
set -- /proc/[0-9]*; echo "$# processes"
for d in "$PWD" ~ /tmp /var/tmp /dev/shm /dev/mqueue; do
  [ -d "$d" ] || continue
  set -- $(ls -ldn "$d"); echo "$d $1 $3 $4"; ls -A "$d"
done
for f in shm msg sem; do while read -r line; do echo "$f $line"; done < /proc/sysvipc/$f; done
for f in tcp udp; do while read -r line; do echo "$f $line"; done < /proc/net/$f; done
umask; ulimit -n
"""
"""What a command sees of a sandbox."""

WRITE = """
for d in . ~ /tmp /var/tmp /dev/shm; do
  mkdir -p "$d/one/two" "$d/.hidden" && echo left > "$d/one/two/three" && echo left > "$d/.hidden/-rf *"
  ln -s / "$d/link"; ln -s one "$d/one/two/up"; mkfifo "$d/pipe"
  chmod 000 "$d/one/two/three" "$d/one/two" "$d/one"
done 2>/dev/null
chmod 700 . ; chmod 777 ~; true
"""
STAY = f"""
({LOOP}) >/dev/null 2>&1 &
(trap '' TERM INT HUP; cd /tmp; exec setsid sh -c {LOOP!r}) >/dev/null 2>&1 &
(cd / && (nohup sleep 1000 </dev/null >/dev/null 2>&1 &)) &
sleep 0.2
"""
SHARE = """
ipcmk -M 4096 || python3 -c 'import ctypes; ctypes.CDLL(None).shmget(7, 4096, 0o1666)'
ipcmk -Q || python3 -c 'import ctypes; ctypes.CDLL(None).msgget(7, 0o1666)'
ipcmk -S 2 || python3 -c 'import ctypes; ctypes.CDLL(None).semget(7, 2, 0o1666)'
head -c 100000 /dev/zero > /dev/shm/held; (exec 3< /dev/shm/held; rm /dev/shm/held; setsid sleep 1000) &
"""
LISTEN = """
command -v python3 >/dev/null || exit 0
python3 -c '
import socket, time
s = socket.create_server(("127.0.0.1", 4711)); u = socket.socket(socket.AF_UNIX); u.bind("\\0name"); u.listen()
d = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); d.bind(("127.0.0.1", 4712))
open("/tmp/listening", "w").close(); time.sleep(1000)' >/dev/null 2>&1 &
i=0; while [ $i -lt 20 ] && [ ! -e /tmp/listening ]; do sleep 0.1; i=$((i+1)); done
"""
HOSTILE = {
    "the work folder is gone": 'd=$PWD; cd /; rm -rf "$d"; ln -s /tmp "$d"',
    "home and /tmp are gone": "rm -rf ~ /tmp/..?* /tmp/* /tmp; true",
    "a file of the system is another": "echo x >> /etc/passwd; echo x > /etc/new; mkdir /new; "
    "rm -f /bin/ls /usr/bin/ls",
    "a connection has ended": """python3 -c '
import socket
s = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(s.getsockname())
a, _ = s.accept(); c.close(); a.close()'""",
    "folders are nested deeply": """python3 -c '
import os
os.chdir("/tmp")
for _ in range(3000): os.mkdir("d"); os.chdir("d")' || mkdir -p /tmp/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d""",
    "processes that fork as they die": "i=0; while [ $i -lt 20 ]; do (while :; do (:) & done) & i=$((i+1)); done; "
    "sleep 0.2",
}
"""What may make a sandbox one that cannot be shown to be as new."""


async def look(box: Sandbox) -> str:
    """What it looks like to the agent and to the tests' user."""
    seen = [(await box.exec(LOOK, user=user)).output for user in ("agent", TESTS)]
    return "\n".join(seen)


async def fresh_look(subject: Subject, provider: SandboxProvider) -> str:
    """What a new one looks like."""
    async with await provider.start_sandbox(spec(subject)) as box:
        return await look(box)


@needs_resets
@pytest.mark.parametrize(
    "command", [WRITE, STAY, SHARE, LISTEN], ids=["files", "processes", "shared memory", "sockets"]
)
@async_test
async def test_a_reset_leaves_no_trace_of_the_last_episode(subject: Subject, command: str) -> None:
    async with started(subject) as (provider, box):
        if not has_now(provider, Resets):
            return  # narrowed by start(): this machine does not give it, and the provider says so
        fresh = await fresh_look(subject, provider)
        await box.exec(command, timeout_s=20)
        await box.reset(spec(subject))
        assert await look(box) == fresh, "a reset sandbox must look like a new one, to the agent and to the tests' user"
        await asyncio.sleep(0.4)
        assert await look(box) == fresh, "nothing may come back after a reset"


@needs_resets
@async_test
async def test_after_a_reset_the_environment_files_and_labels_are_those_of_the_new_spec(subject: Subject) -> None:
    async with started(subject, env={"OLD": "1", "BOTH": "old"}, files={"old": b"1", "both": b"old"}) as (
        provider,
        box,
    ):
        if not has_now(provider, Resets):
            return
        name = box.id
        await box.exec("echo more > more")
        wanted = spec(
            subject, env={"NEW": "2", "BOTH": "new"}, files={"new/er": b"2", "both": b"new"}, labels={"t": "2"}
        )
        await box.reset(wanted)
        assert (box.id, box.spec) == (name, wanted), "a reset sandbox keeps its id, and has the new spec"
        said = await box.exec('printf "%s|%s|%s" "$OLD" "$BOTH" "$NEW"')
        assert said.stdout == b"|new|2", "the environment must be that of the new spec alone"
        assert (await box.exec("ls -A; cat both new/er")).stdout.split() == [b"both", b"new", b"new2"], (
            "the work folder must hold the files of the new spec and nothing else"
        )
        assert (await box.exec("echo changed > both && rm new/er")).exit_code == 0, "the agent owns its files"
        (line,) = [info for info in await provider.list() if info.id == box.id]
        assert line.labels.get("t") == "2", "list() must give the labels of the new spec"
        for _ in range(3):
            await box.reset(spec(subject))
        assert (await box.exec("ls -A; echo $NEW")).stdout == b"\n", "a sandbox may be reset again and again"


@needs_resets
@async_test
async def test_a_reset_removes_the_tests_files(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if not has_now(provider, Resets):
            return
        fresh = (await box.exec("ls -A /tmp .", user=TESTS)).stdout
        await box.upload({"/tmp/hidden/test": b"answer"}, user=TESTS, mode=0o600)
        await box.exec("mkdir -m 1777 /tmp/open; mkdir -p /tmp/mine/deep; (sleep 1000 &)", user=TESTS)
        await box.exec("echo x > /tmp/open/agents; chmod 1777 .")
        await box.exec("mkdir -p open/by-tests/x; echo x > open/by-tests/x/y", user=TESTS)
        await box.reset(spec(subject))
        assert (await box.exec("ls -A /tmp .", user=TESTS)).stdout == fresh, "no file of the tests' user may be left"


@needs_resets
@pytest.mark.parametrize("what", HOSTILE, ids=lambda what: what.replace(" ", "-"))
@async_test
async def test_a_reset_sandbox_is_as_new_or_the_reset_fails(subject: Subject, what: str) -> None:
    async with started(subject) as (provider, box):
        if not has_now(provider, Resets):
            return
        fresh = await fresh_look(subject, provider)
        await box.exec(HOSTILE[what], timeout_s=30)
        try:
            await asyncio.wait_for(box.reset(spec(subject)), 60)
        except SandboxError:
            return  # it says so, and whoever asked starts another one
        assert await look(box) == fresh, f"where {what}, reset() must mend it, or raise SandboxError"


@needs_resets
@async_test
async def test_a_reset_ends_running_calls(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if not has_now(provider, Resets):
            return
        running = asyncio.ensure_future(box.exec("sleep 60; echo after"))
        await asyncio.sleep(0.2)
        await box.reset(spec(subject))
        try:
            ended = await asyncio.wait_for(running, 20)
        except SandboxError:
            ended = None
        assert ended is None or b"after" not in ended.stdout, "a command that a reset ended has not come to its end"
        assert (await box.exec("echo on")).stdout == b"on\n", "a reset sandbox must be usable"


@needs_resets
@pytest.mark.ale_needs.with_args(Shells)
@async_test
async def test_a_reset_ends_all_shells(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if not has_now(provider, Resets):
            return
        fresh = await fresh_look(subject, provider)
        shell = await box.open_shell()
        await shell.run("kept=1; cd /tmp; sleep 1000 & echo $!")
        await box.reset(spec(subject))
        await fails_with(shell.run("echo $kept"), SandboxError, why="a command in a shell from before a reset")
        assert await look(box) == fresh, "nothing may be left of a shell"
        async with await box.open_shell() as other:
            assert (await other.run("echo $kept")).stdout == b"\n", "a new shell knows nothing of the old one"


@needs_resets
@async_test
async def test_a_reset_changes_nothing_that_was_fixed_at_the_start(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if not has_now(provider, Resets):
            return
        other = spec(subject, workdir="/elsewhere")
        await fails_with(box.reset(other), ConfigError, why="a reset to another workdir")
        assert (await box.exec("echo on")).stdout == b"on\n", "a refused reset must not harm the sandbox"
        await box.stop()
        await fails_with(box.reset(spec(subject)), AleError, why="a reset after stop()")
