"""Persistent shells, in both modes: what the conformance kit cannot ask, since it is about how they are made."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ale.errors import SandboxError
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
from ale.specs.sandbox_protocols import Shell
from ale_local import LocalSandbox, LocalSandboxConfig, LocalSandboxProvider

from .conftest import SMALL, provider_for, spec_of
from .test_commands import running
from .test_lifetime import eventually

FORGE = r"""
import os, sys
shell = int(sys.argv[1])
lines = b"".join(b"d %d 0\ns %d\nr %d\nk %d 1\nk %d %d\nx 0\np 1\n" % (n, n, n, n, n, shell) for n in range(1, 60))
for name in os.listdir(f"/proc/{shell}/fd"):
    path = f"/proc/{shell}/fd/{name}"
    if "pipe" in os.readlink(path):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            os.write(fd, lines + b"\n" * 3 + b"x" * 30000 + b"\nd\nd -1\nd 1 9999999999999999999999\n\xff\xff \x00\n")
        except OSError:
            pass
print("forged")
"""


@pytest.fixture
async def shell(sandbox: LocalSandbox) -> AsyncIterator[Shell]:
    """A shell of each isolation."""
    async with await sandbox.open_shell() as opened:
        yield opened


async def said(shell: Shell, command: str) -> str:
    """What a command writes; it must not fail."""
    done = await shell.run(command)
    assert done.exit_code == 0, done
    return done.stdout.decode()


async def test_jobs_are_known_by_their_numbers(shell: Shell) -> None:
    await shell.run("sleep 4101 & sleep 4102 &")
    assert (await said(shell, "jobs")).count("Running") == 2
    assert (await shell.run("kill %1; wait %1")).exit_code == 143
    done = await shell.run("sleep 60; echo next", timeout_s=0.3)
    assert (done.exit_code, done.stdout) == (124, b"")
    assert "sleep 4102" in await said(shell, "jobs"), "a time-out leaves the shell itself alone, where it can"


@pytest.mark.parametrize(
    "options",
    ["set -u", "set -f", "set -C", "set -a", "set -x", "set -o pipefail", "set -o posix", "set -v", "IFS=0x1:"],
)
async def test_options_stay_and_do_not_trouble_the_shell(shell: Shell, options: str) -> None:
    await shell.run(f"x=1; {options}; n=$-")
    for _ in range(2):
        assert "same\n1\n" in await said(shell, '[ "$n" = "$-" ] && echo same; echo "$x"')
        await shell.run("exit 3")
    assert (await shell.run("sleep 60; echo on", timeout_s=0.3)).exit_code == 124
    assert "same\n" in await said(shell, '[ "$n" = "$-" ] && echo same')


async def test_everything_that_bash_can_print_survives_an_exit(shell: Shell) -> None:
    await shell.run("alias greet='echo hello'; shopt -s extglob nullglob; declare -A map=([a b]='c\n\"d' [e]=f)")
    await shell.run(
        'list=(1 \'2 3\' "it\'s"); readonly fixed=1; declare -i sum=4; many() { echo "$(($1))" ${2##+(0)}; }'
    )
    await shell.run("export -f many; unset LANG; export Q=$'\\x01\\xff\\n'; set -o pipefail")
    await shell.run("exit 3")
    lines = (
        'greet; echo "${map[a b]}" "${map[e]}"; echo "${#list[@]} ${list[2]}"; sum+=1; echo $sum; '
        "many 2+3 0007; bash -c 'many 1+1 01'; echo ${LANG-none}; printf %q \"$Q\"; false | true; echo $?; shopt -q "
        "extglob"
    )
    expected = "hello\nc\n\"d f\n3 it's\n5\n5 7\n2 01\nnone\n$'\\001\\377\\n'1\n"
    assert (await shell.run(lines)).stdout.decode() == expected
    assert (await shell.run("fixed=2; echo on")).stdout == b"", "what is read-only stays so, and ends a command"


async def test_traps_of_the_user_are_the_users(shell: Shell) -> None:
    await shell.run("x=1; trap 'echo bye' EXIT; trap 'echo term' TERM")
    assert await said(shell, "kill -TERM $$; echo on") == "term\non\n"
    done = await shell.run("y=2; exit 4")
    assert (done.exit_code, done.stdout) == (4, b"bye\n")
    assert await said(shell, "echo $x") == "1\n"
    await shell.run("trap '' PWR TERM INT; x=3")
    assert (await shell.run("sleep 60; sleep 60", timeout_s=0.3)).exit_code == 124, (
        "a shell that does not heed is killed"
    )
    assert await said(shell, "echo $x") == "3\n"


async def test_a_shell_whose_folder_is_removed_or_replaced_goes_on(sandbox: LocalSandbox, shell: Shell) -> None:
    where = "for d in /dev/shm/.ale-* $TMPDIR/.ale-*; do if [ -d $d ]; then echo $d; fi; done"
    for spoil in (
        "rm -rf $d",
        "mv $d $d.old; mkdir $d",
        "mv $d $d.old; ln -s /etc $d",
        "rm -f $d/*; mkdir $d/o",
        "rm -f $d/*; mkdir $d/s; chmod 0 $d",
    ):
        (folder,) = (await said(shell, where)).split()
        await sandbox.exec(f"d={folder}; {spoil}")
        done = await shell.run("echo out; echo err >&2; x=1; exit 3")
        assert (done.exit_code, done.stdout, done.stderr) == (3, b"out\n", b"err\n"), spoil
        done = await shell.run("echo on")
        assert (done.exit_code, done.stdout) == (0, b"on\n"), spoil
        await sandbox.exec(f"d={folder}; chmod -R u+rwx $d $d.old; rm -rf $d $d.old")


async def test_nothing_of_a_shell_stands_anywhere_when_it_is_closed(sandbox: LocalSandbox) -> None:
    resident = f"/proc/{sandbox.record.pid}/fd"
    await (await sandbox.open_shell()).close()
    before = len(os.listdir(resident))
    for number in range(5):
        async with await sandbox.open_shell() as shell:
            await shell.run("sleep 4103 &")
            await shell.run(f"exit {number}")
            await shell.run("sleep 60", timeout_s=0.1)
            await shell.run("echo on")
    assert await eventually(lambda: len(os.listdir(resident)) <= before), "the resident lets go of every descriptor"
    assert await running(sandbox, "4103") == 0
    left = await sandbox.exec("ls -A /dev/shm $TMPDIR | grep '^.ale-'")
    assert left.stdout == b""


async def test_a_forged_report_harms_nobody_else(sandbox: LocalSandbox, shell: Shell) -> None:
    await sandbox.upload({"forge.py": FORGE.encode()})
    async with await sandbox.open_shell() as other:
        await other.run("x=1; sleep 4104 & job=$!")
        running_elsewhere = asyncio.ensure_future(other.run("sleep 1; echo done"))
        for _ in range(3):
            done = await shell.run("python3 forge.py $$; sleep 0.2", timeout_s=10)
            assert done.stdout in (b"forged\n", b""), "it may have told of its end before it came"
        assert (await sandbox.exec("echo alive")).stdout == b"alive\n"
        assert (await running_elsewhere).stdout == b"done\n"
        assert await said(other, "echo $x; kill $job && echo there") == "1\nthere\n"
        await shell.close()
        assert await said(other, "echo $x") == "1\n"


async def test_what_a_shell_says_without_end_holds_nobody_up(sandbox: LocalSandbox, shell: Shell) -> None:
    flood = (
        "for f in /proc/$$/fd/*; do case $(readlink $f) in pipe*) (yes 'd 1 1' >$f) 2>/dev/null & esac; done; sleep 60"
    )
    flooding = asyncio.ensure_future(shell.run(flood, timeout_s=2))
    began = time.monotonic()
    for _ in range(20):
        assert (await sandbox.exec("echo on")).stdout == b"on\n"
    assert time.monotonic() - began < 20
    assert (await flooding).exit_code in (124, 1)
    await shell.close()


async def test_a_command_may_kill_what_is_above_it(sandbox: LocalSandbox, shell: Shell) -> None:
    await shell.run("x=1")
    for _ in range(2):
        done = await shell.run("kill -9 $PPID; sleep 60; echo on")
        assert done.exit_code == 137
        assert await said(shell, "echo $x") == "1\n"
    assert (await sandbox.exec("echo alive")).stdout == b"alive\n"


@pytest.mark.bwrap
async def test_the_process_above_a_shell_cannot_be_looked_into(box: LocalSandbox) -> None:
    await box.upload({"/tmp/hidden": b"secret-of-the-tests"}, user="tests", mode=0o600)
    async with await box.open_shell() as shell:
        for name in ("environ", "mem", "maps", "fd/0", "auxv"):
            done = await shell.run(f"[ -e /proc/$PPID/stat ] && cat /proc/$PPID/{name} | head -c 10")
            assert (done.stdout, b"denied" in done.stderr) == (b"", True), name


@pytest.mark.bwrap
async def test_a_full_disk_does_not_stop_a_shell(box: LocalSandbox) -> None:
    async with await box.open_shell() as shell:
        await shell.run("x=1")
        await shell.run("cat /dev/zero > /dev/shm/full; cat /dev/zero > /tmp/full; cat /dev/zero > full; x=2")
        assert await said(shell, "echo $x") == "2\n"
        assert (await shell.run("exit 3")).exit_code == 3
        assert await said(shell, "echo $x") in ("1\n", "2\n")
        await shell.run("rm -f full /tmp/full /dev/shm/full; x=4")
        await shell.run("exit 3")
        assert await said(shell, "echo $x") == "4\n"


@pytest.mark.bwrap
async def test_a_fork_bomb_in_a_shell_ends_at_its_time_out(box: LocalSandbox) -> None:
    async with await box.open_shell() as shell:
        await shell.run("x=1; sleep 4105 &")
        done = await asyncio.wait_for(shell.run("f() { f | f & }; f; sleep 100", timeout_s=0.5), 120)
        assert done.exit_code == 124 or not done.timed_out
        done = await shell.run("echo $x")
        assert done.stdout == b"1\n", done
        assert await running(box, "4105") == 1


async def test_an_open_shell_that_rests_keeps_no_sandbox_from_being_idle(provider: LocalSandboxProvider) -> None:
    sandbox = await provider.start_sandbox(spec_of(provider, idle_s=0.6))
    shell = await sandbox.open_shell()
    assert (await shell.run("sleep 1; echo on")).stdout == b"on\n"
    for _ in range(100):
        await asyncio.sleep(0.1)
        if sandbox.stopping is not None:
            break
    with pytest.raises(SandboxError, match="it was idle for"):
        await shell.run("true")
    await shell.close()


FATES: dict[str, tuple[str, int | None, bytes]] = {
    "echo": ("echo out; (exit 3)", 3, b"out\n"),
    "exit": ("echo out; exit 4", 4, b"out\n"),
    "exec": ("exec sh -c 'echo out; exit 5'", 5, b"out\n"),
    "syntax": ("if", 2, b""),
    "killed": ("echo out; kill -9 $$", None, b"out\n"),
    "killed from above": ("echo out; kill -9 $PPID; sleep 5", None, b"out\n"),
    "late": ("echo out; sleep 4108 | cat; echo on", 124, b"out\n"),
    "late in a function": ("f() { echo out; sleep 4108; echo on; }; f; echo on", 124, b"out\n"),
    "busy": ("echo out; while :; do :; done", 124, b"out\n"),
    "cancelled": ("sleep 4108; echo on", None, b""),
    "job": ("echo out; (sleep 0.1; echo late) & (setsid sleep 0.2 &)", 0, b"out\n"),
}
"""Commands, with the exit codes that they must have and what they write."""


async def suffer(sandbox: LocalSandbox, chance: random.Random) -> None:
    """Let shells go through many fates, one after another, and look at each."""
    shell = await sandbox.open_shell()
    for _ in range(40):
        fate = chance.choice([*FATES, "reopened"])
        if fate == "reopened":
            await shell.close()
            shell = await sandbox.open_shell()
            continue
        command, code, output = FATES[fate]
        short = chance.random() * 0.2
        call = asyncio.ensure_future(shell.run(command, timeout_s=short if code == 124 else 60))
        if fate == "cancelled":
            await asyncio.sleep(short)
            call.cancel()
            await asyncio.wait([call])
            continue
        done = await call
        assert code in (None, done.exit_code), (fate, done)
        also = {"job": b"out\nlate\n"}.get(fate, b"" if code == 124 else output)  # where the shell was slow to end
        assert done.stdout in (output, also), (fate, done)
    await shell.close()


@pytest.mark.bwrap
@pytest.mark.parametrize("name", ["bash", "dash"])
async def test_whatever_becomes_of_shells_every_command_has_its_end(name: str) -> None:
    if not os.access(f"/bin/{name}", os.X_OK):
        pytest.skip(f"{name} is not installed")
    config = LocalSandboxConfig(isolation="bubblewrap", shell=f"/bin/{name}", defaults=SMALL)
    driver = LocalSandboxProvider(config, DriverContext())
    async with driver as provider, await provider.start_sandbox(SandboxSpec()) as sandbox:
        await asyncio.gather(*(suffer(sandbox, random.Random(seed)) for seed in range(3)))
        assert await running(sandbox, "4108") == 0, "no time-out and no cancelled call left anything"


def shells(folder: Path) -> dict[str, str]:
    """Other shells of this machine, by name."""
    there = {}
    if os.access("/bin/dash", os.X_OK):
        there["dash"] = "/bin/dash"
    busybox = shutil.which("busybox")
    if busybox is not None:
        (folder / "sh").symlink_to(busybox)  # what it is goes by the name that it is called by
        there["busybox"] = str(folder / "sh")
    return there


@asynccontextmanager
async def shell_of(name: str, tmp_path: Path) -> AsyncIterator[Shell]:
    """Open a shell of the program with this name, without isolation; skip where it is not installed."""
    path = {"bash": "/bin/bash", **shells(tmp_path)}.get(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    config = LocalSandboxConfig(isolation="none", shell=path, defaults=SMALL)
    async with (
        LocalSandboxProvider(config, DriverContext()) as provider,
        await provider.start_sandbox(spec_of(provider)) as sandbox,
        await sandbox.open_shell() as opened,
    ):
        yield opened


@pytest.mark.parametrize("name", ["dash", "busybox"])
async def test_shells_that_cannot_print_their_functions_keep_them_too(name: str, tmp_path: Path) -> None:
    path = shells(tmp_path).get(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    config = LocalSandboxConfig(isolation="none", shell=path, defaults=SMALL)
    async with LocalSandboxProvider(config, DriverContext()) as provider:
        async with await provider.start_sandbox(spec_of(provider)) as sandbox, await sandbox.open_shell() as shell:
            await shell.run(
                "mkdir in; cd in; x=1; export Y='a  b'; greet() { echo \"hello $x\"; }; alias say='echo said'"
            )
            for number, command in enumerate(["exit 7", "exec true", "set -e; false", "sleep 60; echo on", "exit 8"]):
                await shell.run("sleep 4106 &")
                await shell.run(f"x={number}")
                await shell.run(command, timeout_s=0.5)
                told = await said(shell, 'basename "$PWD"; greet; say; sh -c \'echo "$Y$x"\'; umask')
                assert told == f"in\nhello {number}\nsaid\na  b\n0022\n", command
            assert await running(sandbox, "4106") == 5, "jobs live on"
        assert running_here("4106") == 0


def running_here(seconds: str) -> int:
    """How many `sleep SECONDS` there are on this machine."""
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                count += (entry / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode()
            except OSError:
                continue
    return count


async def test_what_a_restarted_shell_started_ends_with_a_sandbox_whose_resident_was_killed() -> None:
    async with provider_for("none") as provider:
        sandbox = await provider.start_sandbox(spec_of(provider))
        shell = await sandbox.open_shell()
        await shell.run("exit 3")
        await shell.run("sleep 4107 & setsid sleep 4107 &")
        assert await eventually(lambda: running_here("4107") == 2)
        os.kill(sandbox.record.pid, 9)
        await sandbox.stop()
        assert running_here("4107") == 0


HIDES = "printf builtin eval read exec command unset trap"
"""Names of commands that users hide by functions."""


@pytest.mark.parametrize("name", ["bash", "dash", "busybox"])
async def test_what_a_user_sets_in_a_shell_sees_nothing_of_ours(name: str, tmp_path: Path) -> None:
    async with shell_of(name, tmp_path) as shell:

        async def run(command: str) -> tuple[int, bytes, bytes]:
            done = await shell.run(command)
            return done.exit_code, done.stdout, done.stderr

        await run("set -x")
        plus = b"++" if name == "bash" else b"+"  # as inside `eval`
        assert await run("echo hi; (exit 3)") == (3, b"hi\n", plus + b" echo hi\n" + plus + b" exit 3\n")
        assert await run("echo $?") == (0, b"3\n", plus + b" echo 3\n")
        await run("set +x; set -v")
        assert (await run("echo hi"))[2] in (b"echo hi\n", b"")
        await run("set +v; set -u; set -f; set -C; IFS=0123456789")
        for hidden in HIDES.split():
            await run(f"{hidden}() {{ echo hidden; }}")  # a POSIX shell refuses some of them
            assert await run("echo hi; (exit 3)") == (3, b"hi\n", b""), hidden
            await run("unset -f unset")
            await run(f"unset -f {hidden}")


@pytest.mark.parametrize("name", ["bash", "dash", "busybox"])
async def test_options_that_end_a_shell_or_export_everything_do_not_reach_ours(name: str, tmp_path: Path) -> None:
    async with shell_of(name, tmp_path) as shell:
        await shell.run("x=kept")
        for option in ("set -n", "echo before; set -n; echo after", "set -t", "set -t; true"):
            done = await shell.run(option, timeout_s=30)
            assert not done.timed_out, option
            assert done.stdout == (b"before\n" if "before" in option else b""), option
            for _ in range(2):
                assert await said(shell, "echo $x") == "kept\n", option
        await shell.run("set -a; y=1")
        await shell.run("z=1")
        seen = await said(shell, "env")
        assert "y=1\n" in seen
        assert "z=1\n" in seen
        assert "__ale" not in seen


async def test_traps_that_bash_runs_for_commands_run_for_the_users_alone(shell: Shell) -> None:
    await shell.run("""trap 'echo "D $BASH_COMMAND"' DEBUG""")
    for _ in range(2):
        assert await said(shell, "echo hi; true") == "D echo hi\nhi\nD true\n"
    assert await said(shell, "trap - DEBUG; trap 'echo R' RETURN") == "D trap - DEBUG\n"
    assert await said(shell, "trap -p RETURN") == "trap -- 'echo R' RETURN\n"
    await shell.run("trap - RETURN; trap 'echo \"E $BASH_COMMAND\"' ERR")
    assert (await shell.run("false")).stdout == b"E false\n"
    assert await said(shell, "echo $?; trap - ERR; shopt inherit_errexit | cut -f2; echo $-") == "1\noff\nhBs\n"
