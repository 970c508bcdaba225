"""The sandbox contract: commands, files, lifetime, and that the capabilities it claims are true."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ale.capabilities import NETWORKS
from ale.errors import AleError, ConfigError, PluginError, SandboxError
from ale.specs.sandbox import AGENT, TESTS, NetworkMode, Resources, Sandbox, SandboxProvider, SandboxSpec, SandboxStats
from ale.testing.scenario import cancelled, fails_with, patience_s, same, scenario
from ale.testing.subject import Subject

needs = pytest.mark.ale_needs

EVERY_BYTE = bytes(range(256))
LARGE = EVERY_BYTE * 4096 * 20  # 20 MiB
LOOP = "i=0; while :; do i=$((i+1)); echo $i > beat.new; mv beat.new beat; sleep 0.05; done"
"""Counts, for whoever looks whether it still runs."""


def spec(subject: Subject, **more: Any) -> SandboxSpec:
    """A plain sandbox under the strictest network policy that the provider claims."""
    for mode, capability in NETWORKS.items():
        if subject.can(capability):
            return network_spec(mode, **more)
    raise AssertionError(f"a provider must claim at least one of {', '.join(NETWORKS.values())}")


def network_spec(mode: NetworkMode, **more: Any) -> SandboxSpec:
    """A sandbox of a network policy, with what the policy has to name."""
    needed: dict[str, Any] = {"endpoint-only": {"endpoint": "http://127.0.0.1:9"}, "allow": {"allow": ("127.0.0.1:9",)}}
    return SandboxSpec(network=mode, **needed.get(mode, {}), **more)


@asynccontextmanager
async def started(subject: Subject, **more: Any) -> AsyncIterator[tuple[SandboxProvider, Sandbox]]:
    """A provider and one sandbox; both gone afterwards."""
    async with subject.build() as provider:
        async with await provider.start_sandbox(spec(subject, **more)) as box:
            yield provider, box
        assert box.id not in {i.id for i in await provider.list()}, "list() must not name a sandbox that was stopped"


async def work_folder(box: Sandbox) -> str:
    """Where commands begin; a provider without a file system of its own cannot choose it."""
    return (await box.exec("pwd")).stdout.decode().rstrip("\n")


# -- commands ----------------------------------------------------------------------------------------------------


@scenario
async def test_exec_gives_exit_code_stdout_and_stderr_apart(subject: Subject) -> None:
    async with started(subject) as (_, box):
        done = await box.exec("printf out; printf err >&2; exit 7")
        assert done.exit_code == 7, f"exec must give the command's exit code, 7; it gave {done.exit_code}"
        assert (done.stdout, done.stderr) == (b"out", b"err"), "exec must keep stdout and stderr apart and whole"
        assert not done.timed_out, "a command that ended by itself did not time out"
        assert not done.truncated, "short output is not truncated"
        assert done.duration_s > 0, "duration_s must be measured"
        assert (await box.exec("true")).exit_code == 0, "a sandbox must go on after a command that failed"


@scenario
async def test_calls_of_a_sandbox_are_awaited(subject: Subject) -> None:
    async with started(subject) as (_, box):
        for name, method in inspect.getmembers(Sandbox, inspect.iscoroutinefunction):
            if not name.startswith("_"):
                own = getattr(type(box), name, None)
                assert own is method or inspect.iscoroutinefunction(own), f"{name}() of a sandbox must be async def"
        stats = await box.stats()
        assert isinstance(stats, SandboxStats), f"stats() must give SandboxStats, not {stats!r}"


@scenario
async def test_a_command_that_fails_is_data_and_no_error(subject: Subject) -> None:
    async with started(subject) as (_, box):
        for command, code in (("no-such-program-here", 127), ("exit 255", 255), ("kill -9 $$", 137)):
            done = await box.exec(command)
            assert done.exit_code == code, (
                f"exec({command!r}) must give {code}, as a shell does; it gave {done.exit_code}"
            )
        assert (await box.exec("if")).exit_code != 0, "a syntax error must be a failed command"


@scenario
async def test_output_may_be_any_bytes_and_commands_any_text(subject: Subject) -> None:
    async with started(subject, files={"every": EVERY_BYTE}) as (_, box):
        assert (await box.exec("cat every")).stdout == EVERY_BYTE, "stdout must hold binary output unchanged"
        said = await box.exec("printf '%s' 'dö ✓ \U0001f600 \"$x\"'")
        assert said.stdout.decode() == 'dö ✓ \U0001f600 "$x"', "a command must reach the shell as it was written"
        half = await box.exec("printf 'a\ud800b'")  # a policy's JSON may hold half a character
        assert half.stdout.startswith(b"a") or half.exit_code != 0, (
            "a command with half a character (a surrogate, \\ud800) runs as bytes, or is a failed command"
        )
        many = await box.exec("i=0\nwhile [ $i -lt 3 ]; do\n  echo line $i\n  i=$((i+1))\ndone")
        assert many.stdout == b"line 0\nline 1\nline 2\n", "a command may have several lines"


@scenario
async def test_stdin_environment_and_folder_reach_the_command(subject: Subject) -> None:
    async with started(subject, env={"FROM_SPEC": "sp ec"}) as (_, box):
        assert same((await box.exec("cat", stdin=LARGE[: 1 << 20])).stdout, LARGE[: 1 << 20]), "stdin must arrive whole"
        assert (await box.exec("cat")).stdout == b"", "without stdin a command reads an end of file, it must not wait"
        said = await box.exec('printf "%s|%s" "$FROM_SPEC" "$MORE"', env={"MORE": "mö re"})
        assert said.stdout.decode() == "sp ec|mö re", "both the spec's and the call's environment must be set"
        assert (await box.exec("printf %s $MORE")).stdout == b"", "a call's environment must end with the call"
        assert (await box.exec("mkdir -p 'a b'")).exit_code == 0
        there = await box.exec("pwd", cwd=f"{await work_folder(box)}/a b")
        assert there.stdout.endswith(b"/a b\n"), "cwd must be the folder that the command runs in"


@scenario
async def test_output_beyond_the_limit_is_cut_and_says_so(subject: Subject) -> None:
    async with started(subject) as (_, box):
        done = await box.exec("head -c 300000 /dev/zero | tr '\\0' x; echo end >&2", max_output_bytes=1000)
        assert len(done.stdout) == 1000, f"stdout must be cut at max_output_bytes=1000; it has {len(done.stdout)} bytes"
        assert done.truncated, "ExecResult.truncated must say that output was cut"
        assert done.exit_code == 0, "the command must go on when its output is cut"
        assert done.stderr == b"end\n", "stdout and stderr are cut each by itself"


@scenario
async def test_a_time_out_kills_everything_and_keeps_the_output_so_far(subject: Subject) -> None:
    async with started(subject) as (_, box):
        command = f"({LOOP}) & echo before; sleep 60; echo after"
        done = await asyncio.wait_for(box.exec(command, timeout_s=1.0), 30)
        assert done.timed_out, "ExecResult.timed_out must say so"
        assert done.exit_code == 124, (
            f"a time-out must give exit code 124, as timeout(1) does; it gave {done.exit_code}"
        )
        assert done.stdout == b"before\n", f"the output before the time-out must be kept; it was {done.stdout!r}"
        first = (await box.exec("cat beat; sleep 0.5; cat beat")).stdout.split()
        assert first[0] == first[-1], "a time-out must kill the whole process tree, background processes too"


@scenario
async def test_a_time_out_also_ends_what_ignores_signals(subject: Subject) -> None:
    async with started(subject) as (_, box):
        done = await asyncio.wait_for(box.exec("trap '' TERM INT HUP; sleep 60 & wait; sleep 60", timeout_s=0.5), 30)
        assert done.timed_out, "a command that ignores SIGTERM must be killed at its time-out all the same"


@scenario
async def test_cancelling_exec_kills_the_command(subject: Subject) -> None:
    async with started(subject) as (_, box):
        for after_s in (0.0, 0.05, 0.3):
            assert await cancelled(box.exec(LOOP), after_s), "exec must not end before its command does"
        told = (await box.exec("cat beat 2>/dev/null; sleep 0.4; cat beat 2>/dev/null")).stdout.split()
        assert not told or told[0] == told[-1], "cancelling exec must kill what the command started"


@scenario
async def test_commands_run_side_by_side(subject: Subject) -> None:
    async with started(subject) as (_, box):
        began = asyncio.get_running_loop().time()
        results = await asyncio.gather(*(box.exec(f"sleep 0.4; echo {i}; exit {i}") for i in range(8)))
        took = asyncio.get_running_loop().time() - began
        assert [r.exit_code for r in results] == list(range(8)), "each command must get its own exit code"
        assert [r.stdout for r in results] == [f"{i}\n".encode() for i in range(8)], "outputs must not mix"
        assert took < 0.4 * 8, f"commands must run side by side; eight of 0.4 s took {took:.1f} s"


@scenario
async def test_kill_agent_processes_ends_what_the_agent_left_running(subject: Subject) -> None:
    async with started(subject) as (_, box):
        await box.exec(f"({LOOP}) >/dev/null 2>&1 &")
        await box.kill_agent_processes()
        told = (await box.exec("cat beat 2>/dev/null; sleep 0.4; cat beat 2>/dev/null")).stdout.split()
        assert not told or told[0] == told[-1], "kill_agent_processes must end background processes of the agent"


# -- files -------------------------------------------------------------------------------------------------------


@scenario
async def test_files_come_back_as_they_went_in(subject: Subject) -> None:
    files: Mapping[str, bytes] = {
        "text": b"hello\n", "every": EVERY_BYTE, "empty": b"", "deep/er/file": b"x", "größe ✓ 'q\" $HOME": b"name",
        "large": LARGE, "-rf": b"dash",
    }  # fmt: skip
    async with started(subject, files={"given/first": b"\x00spec"}) as (_, box):
        assert await box.download("given/first") == b"\x00spec", "spec.files must stand in the work folder"
        await box.upload(files)
        for path, data in files.items():
            found = await box.download(path)
            assert same(found, data), (
                f"download({path!r}) must give what upload wrote: {len(data)} bytes, not {len(found)}"
            )
        seen = await box.exec("cat ./deep/er/file; wc -c < large")
        assert seen.stdout.split() == [b"x" + str(len(LARGE)).encode()] or seen.stdout == f"x{len(LARGE)}\n".encode(), (
            "commands must see uploaded files in the work folder"
        )
        await box.exec("printf made > by-command")
        assert await box.download(f"{await work_folder(box)}/by-command") == b"made", (
            "download must take absolute paths too"
        )
        await box.upload({"text": b"second"})
        assert await box.download("text") == b"second", "upload must replace a file"


@scenario
async def test_what_is_no_file_is_refused_by_name(subject: Subject) -> None:
    why = "download of a path that is not there"
    async with started(subject, files={"folder/file": b"12345678"}) as (_, box):
        await fails_with(box.download("no/such/file"), FileNotFoundError, why=why)
        await fails_with(box.download("folder"), IsADirectoryError, why="download of a folder")
        await fails_with(
            box.download("folder/file", max_bytes=4), AleError, ValueError, OSError, why="a file over max_bytes"
        )
        assert await box.download("folder/file", max_bytes=8) == b"12345678", "max_bytes is the size that still passes"


@scenario
async def test_cancelled_transfers_leave_the_sandbox_usable(subject: Subject) -> None:
    async with started(subject) as (_, box):
        await box.upload({"large": LARGE})
        for after_s in (0.0, 0.005, 0.03):
            await cancelled(box.upload({"other": LARGE}), after_s)
            await cancelled(box.download("large"), after_s)
        assert same(await box.download("large"), LARGE), "a cancelled transfer must not spoil another file"
        assert (await box.exec("echo on")).stdout == b"on\n", "a sandbox must be usable after a cancelled transfer"


# -- lifetime ----------------------------------------------------------------------------------------------------


@scenario
async def test_stop_may_be_called_twice_and_at_any_time(subject: Subject) -> None:
    async with subject.build() as provider:
        box = await provider.start_sandbox(spec(subject))
        running = asyncio.ensure_future(box.exec("sleep 60"))
        await asyncio.sleep(0.1)
        await asyncio.gather(box.stop(), box.stop())
        await fails_with(asyncio.wait_for(running, 20), SandboxError, why="a command whose sandbox is stopped")
        await box.stop()
        for call in (box.exec("true"), box.upload({"a": b""}), box.download("a"), box.kill_agent_processes()):
            await fails_with(call, SandboxError, why="a call after stop()")


@scenario
async def test_a_dead_sandbox_never_looks_like_a_failed_command(subject: Subject) -> None:
    async with subject.build() as provider, subject.build(run_id="other") as other:
        box = await provider.start_sandbox(spec(subject))
        running = asyncio.ensure_future(box.exec("sleep 60"))
        await asyncio.sleep(0.1)
        await other.remove(box.id)  # as an operator would, from outside
        await fails_with(
            asyncio.wait_for(running, 30), SandboxError, why="a command whose sandbox was removed under it"
        )
        await fails_with(box.exec("true"), SandboxError, why="a command in a sandbox that was removed")


@needs("isolated")  # elsewhere it could kill whoever asks
@scenario
async def test_the_agent_may_kill_what_it_can_and_is_told_the_truth(subject: Subject) -> None:
    async with started(subject) as (_, box):
        for command in ("kill -9 $PPID", "kill -9 1"):
            try:
                await asyncio.wait_for(box.exec(command, timeout_s=5), 20)
                again = await asyncio.wait_for(box.exec("echo alive", timeout_s=5), 20)
            except SandboxError:
                return  # dead, and it says so
            assert again.stdout == b"alive\n", f"after {command!r} the sandbox must either work or raise SandboxError"


@scenario
async def test_a_provider_lists_what_it_started_and_removes_it(subject: Subject) -> None:
    async with subject.build() as provider:
        box = await provider.start_sandbox(spec(subject, id=f"ale-kit-{os.getpid()}", labels={"task": "t-1"}))
        assert box.id == f"ale-kit-{os.getpid()}", "a sandbox must have the id that the spec asks for"
        (line,) = [i for i in await provider.list() if i.id == box.id]
        assert line.labels.get("task") == "t-1", "list() must give the labels of the spec"
        assert line.alive, "list() must say that a running sandbox is alive"
        again = await provider.start_sandbox(spec(subject, id=box.id, labels={"task": "t-1"}))
        await box.upload({"mine": b"1"})
        assert await again.download("mine") == b"1", "starting the same spec again must give the sandbox that is there"
        other = provider.start_sandbox(spec(subject, id=box.id, env={"OTHER": "1"}))
        await fails_with(other, AleError, why="starting another spec under an id that is there")
        assert (await box.exec("echo on")).stdout == b"on\n", "a refused second start must not harm the first sandbox"
        async with subject.build(run_id="another") as beside:
            foreign = beside.start_sandbox(spec(subject, id=box.id, labels={"task": "t-1"}))
            await fails_with(foreign, AleError, why="starting an id that another provider has")
        await provider.remove(box.id)
        await provider.remove(box.id)
        await provider.remove("no-such-sandbox")
        assert box.id not in {i.id for i in await provider.list()}, "remove() must take it off the list"


@scenario
async def test_sandboxes_know_nothing_of_each_other(subject: Subject) -> None:
    async with subject.build() as provider:
        boxes = await asyncio.gather(*(provider.start_sandbox(spec(subject)) for _ in range(4)))
        assert len({box.id for box in boxes}) == 4, "every sandbox must have an id of its own"
        await asyncio.gather(*(box.upload({"mine": str(i).encode()}) for i, box in enumerate(boxes)))
        found = await asyncio.gather(*(box.download("mine") for box in boxes))
        assert found == [b"0", b"1", b"2", b"3"], "each sandbox must have files of its own"


@scenario
async def test_closing_the_provider_stops_everything(subject: Subject) -> None:
    provider = subject.build()
    async with provider:
        boxes = [await provider.start_sandbox(spec(subject)) for _ in range(2)]
        running = asyncio.ensure_future(boxes[0].exec("sleep 60"))
        await asyncio.sleep(0.1)
    await fails_with(asyncio.wait_for(running, patience_s()), SandboxError, why="a command whose provider is closed")
    await fails_with(boxes[1].exec("true"), SandboxError, why="a command after the provider's close()")
    async with subject.build() as fresh:
        left = {i.id for i in await fresh.list()} & {box.id for box in boxes}
        assert not left, f"close() must stop every sandbox; left are {', '.join(left)}"


@scenario
async def test_a_cancelled_start_leaves_no_sandbox(subject: Subject) -> None:
    async with subject.build() as provider:
        for i, after_s in enumerate((0.0, 0.002, 0.01, 0.05)):
            name = f"ale-kit-cancel-{os.getpid()}-{i}"
            task = asyncio.ensure_future(provider.start_sandbox(spec(subject, id=name)))
            await asyncio.sleep(after_s)
            task.cancel()
            await asyncio.wait([task], timeout=60)
            assert task.done(), "a cancelled start_sandbox must end"
            if not task.cancelled() and task.exception() is None:
                await task.result().stop()
            for _ in range(50):
                if name not in {entry.id for entry in await provider.list()}:
                    break
                await asyncio.sleep(0.1)
            else:
                raise AssertionError(f"start_sandbox, cancelled after {after_s} s, left the sandbox {name} behind")


@scenario
async def test_a_lifetime_ends_the_sandbox_or_is_refused(subject: Subject) -> None:
    async with subject.build() as provider:
        try:
            box = await provider.start_sandbox(spec(subject, lifetime_s=1.0))
        except (ConfigError, PluginError):
            return
        until = time.monotonic() + patience_s()
        while time.monotonic() < until:
            try:
                await box.exec("true")
            except SandboxError:
                break
            await asyncio.sleep(0.2)
        else:
            raise AssertionError(
                f"a sandbox with lifetime_s=1 must be gone by then; it still runs after {patience_s():g} s"
            )
        await box.stop()
        assert box.id not in {i.id for i in await provider.list()}, (
            "list() must not name a sandbox whose lifetime is over"
        )


@scenario
async def test_an_idle_sandbox_ends_and_a_busy_one_does_not_or_it_is_refused(subject: Subject) -> None:
    async with subject.build() as provider:
        try:
            box = await provider.start_sandbox(spec(subject, idle_s=1.5))
        except (ConfigError, PluginError):
            return
        assert (await box.exec("sleep 2.5; echo on")).stdout == b"on\n", "a sandbox in which a command runs is not idle"
        for _ in range(4):
            await asyncio.sleep(0.5)
            assert (await box.exec("echo on")).stdout == b"on\n", "each call must put the end off by idle_s"
        until = time.monotonic() + patience_s()
        while time.monotonic() < until:
            await asyncio.sleep(0.2)
            if box.id not in {i.id for i in await provider.list()}:
                break
        else:
            raise AssertionError(
                f"a sandbox with idle_s=1.5 must be gone by then; it is still there after {patience_s():g} s"
            )
        await fails_with(box.exec("true"), SandboxError, why="a command in a sandbox that was idle for too long")


@scenario
async def test_what_it_cannot_give_is_refused_and_not_ignored(subject: Subject) -> None:
    async with subject.build() as provider:
        wishes: list[tuple[str, SandboxSpec]] = [
            (mode, network_spec(mode))
            for mode, capability in NETWORKS.items()
            if capability not in provider.capabilities
        ]
        if "limits" not in provider.capabilities:
            wishes.append(("resources.memory_mib", spec(subject, resources=Resources(memory_mib=64))))
        if "snapshot" not in provider.capabilities:
            wishes.append(("from_snapshot", spec(subject, from_snapshot="no-such-snapshot")))
        if "images" not in provider.capabilities:
            wishes.append(("image", spec(subject, image="no-such-image:1")))
        for what, wish in wishes:
            error = await fails_with(
                provider.start_sandbox(wish), ConfigError, PluginError, SandboxError,
                why=f"a spec with {what}, which the provider does not claim to give",
            )  # fmt: skip
            assert str(error).strip(), "a refusal must say why"


# -- capabilities: what is claimed must be true --------------------------------------------------------------------


@needs("network_none")
@scenario
async def test_without_network_the_host_cannot_be_reached(subject: Subject) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        listener.settimeout(0.2)
        port = listener.getsockname()[1]
        async with started(subject) as (provider, box):
            if "network_none" not in provider.capabilities:
                return  # narrowed by start(): this machine does not give it, and the provider says so
            if (await box.exec("command -v bash || command -v nc")).exit_code != 0:
                pytest.skip("the sandbox has neither bash nor nc, so nothing in it could reach the network anyway")
            for host in ("127.0.0.1", *addresses_of_this_host()):
                await box.exec(f"bash -c 'exec 3<>/dev/tcp/{host}/{port}' || nc -w 1 {host} {port}", timeout_s=3)
            with pytest.raises(TimeoutError):
                listener.accept()


def addresses_of_this_host() -> list[str]:
    """Addresses other than loopback that services of this host can be reached at."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # nothing is sent: this asks which address would be used
            return [sock.getsockname()[0]]
        except OSError:
            return []


def write_secret(path: Path) -> Path:
    """A file of the host's that no sandbox may read."""
    path.write_text("secret")
    return path


def read_own_command_line() -> bytes:
    """This process's, where the system tells."""
    own = Path("/proc/self/cmdline")
    return own.read_bytes() if own.exists() else b""


@needs("isolated")
@scenario
async def test_the_host_is_out_of_reach(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALE_KIT_HOST", "1")
    secret = write_secret(subject.folder / "secret-of-the-host")
    async with started(subject) as (_, box):
        seen = await box.exec(f"cat {secret}")
        assert b"secret" not in seen.stdout, "an isolated sandbox must not read the host's files"
        own = read_own_command_line()
        hidden = await box.exec("env")
        assert b"ALE_KIT_HOST" not in hidden.stdout, (
            "an isolated sandbox must not hand the host's environment to commands"
        )
        if own:
            seen = await box.exec(f"cat /proc/{os.getpid()}/cmdline")  # another process may have that number in there
            assert seen.stdout != own, "an isolated sandbox must not see the host's processes"


@needs("isolated")
@scenario
async def test_commands_begin_in_the_work_folder_of_the_spec(subject: Subject) -> None:
    async with started(subject, workdir="/srv/kit", files={"given": b"1"}) as (_, box):
        assert await work_folder(box) == "/srv/kit", "commands must begin in the spec's workdir"
        assert await box.download("/srv/kit/given") == b"1", "spec.files must stand in the spec's workdir"


@needs("limits")
@scenario
async def test_limits_bite(subject: Subject) -> None:
    async with started(subject, resources=Resources(pids=32, memory_mib=128)) as (provider, box):
        if "limits" not in provider.capabilities:
            return  # narrowed by start(): this machine does not give it, and the provider says so
        crowd = "i=0; while [ $i -lt 200 ]; do sleep 8 >/dev/null 2>&1 & i=$((i+1)); done; echo all"
        crowded = await box.exec(crowd, timeout_s=4)
        assert b"all" not in crowded.stdout, "a command must not start 200 processes where pids is 32"
        await box.kill_agent_processes()
        fat = await box.exec("head -c 400000000 /dev/zero | tail", timeout_s=20)
        assert fat.exit_code != 0, "a command that holds 400 MB must fail where memory_mib is 128"
        assert (await box.exec("echo on")).stdout == b"on\n", "a sandbox must survive a command that hit a limit"


@needs("users")
@scenario
async def test_the_tests_files_are_hidden_from_the_agent(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if "users" not in provider.capabilities:
            return
        await box.upload({"/tmp/hidden/test": b"answer"}, user=TESTS, mode=0o600)
        assert (await box.exec("cat /tmp/hidden/test", user=TESTS)).stdout == b"answer", (
            "the tests' user reads its files"
        )
        seen = await box.exec("cat /tmp/hidden/test", user=AGENT)
        assert b"answer" not in seen.stdout, "the agent must not read files of the tests' user"
