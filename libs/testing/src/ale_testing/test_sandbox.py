"""These tests check a sandbox's commands and files."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping

from ale.errors import AleError
from ale.specs.sandbox import Sandbox
from ale.specs.sandbox_protocols import Logs, Measures, SandboxStats
from ale_testing.async_tests import async_test, cancelled, equal_without_diff, fails_with
from ale_testing.plugin_under_test import Subject
from ale_testing.sandbox_setup import (
    EVERY_BYTE,
    LARGE,
    LOOP,
    counts_no_more,
    ends_counting,
    started,
    work_folder,
)

# -- commands ----------------------------------------------------------------------------------------------------


@async_test
async def test_exec_returns_exit_code_stdout_and_stderr(subject: Subject) -> None:
    async with started(subject) as (_, box):
        done = await box.exec("printf out; printf err >&2; exit 7")
        assert done.exit_code == 7, f"exec must give the command's exit code, 7; it gave {done.exit_code}"
        assert (done.stdout, done.stderr) == (b"out", b"err"), "exec must keep stdout and stderr apart and whole"
        assert not done.timed_out, "a command that ended by itself did not time out"
        assert not done.truncated, "short output is not truncated"
        assert done.duration_s > 0, "duration_s must be measured"
        assert (await box.exec("true")).exit_code == 0, "a sandbox must go on after a command that failed"


@async_test
async def test_calls_of_a_sandbox_are_awaited(subject: Subject) -> None:
    async with started(subject) as (_, box):
        for name, method in inspect.getmembers(Sandbox, inspect.iscoroutinefunction):
            if not name.startswith("_"):
                own = getattr(type(box), name, None)
                assert own is method or inspect.iscoroutinefunction(own), f"{name}() of a sandbox must be async def"
        if isinstance(box, Measures):
            stats = await box.stats()
            assert isinstance(stats, SandboxStats), f"stats() must give SandboxStats, not {stats!r}"
        if isinstance(box, Logs):
            assert isinstance(await box.logs(), str), "logs() must give a text"


@async_test
async def test_a_failed_command_is_a_result_and_not_an_exception(subject: Subject) -> None:
    async with started(subject) as (_, box):
        for command, code in (("no-such-program-here", 127), ("exit 255", 255), ("kill -9 $$", 137)):
            done = await box.exec(command)
            assert done.exit_code == code, (
                f"exec({command!r}) must give {code}, as a shell does; it gave {done.exit_code}"
            )
        assert (await box.exec("if")).exit_code != 0, "a syntax error must be a failed command"


@async_test
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


@async_test
async def test_stdin_environment_and_folder_reach_the_command(subject: Subject) -> None:
    async with started(subject, env={"FROM_SPEC": "sp ec"}) as (_, box):
        assert equal_without_diff((await box.exec("cat", stdin=LARGE[: 1 << 20])).stdout, LARGE[: 1 << 20]), (
            "stdin must arrive whole"
        )
        assert (await box.exec("cat")).stdout == b"", "without stdin a command reads an end of file, it must not wait"
        said = await box.exec('printf "%s|%s" "$FROM_SPEC" "$MORE"', env={"MORE": "mö re"})
        assert said.stdout.decode() == "sp ec|mö re", "both the spec's and the call's environment must be set"
        assert (await box.exec("printf %s $MORE")).stdout == b"", "a call's environment must end with the call"
        assert (await box.exec("mkdir -p 'a b'")).exit_code == 0
        there = await box.exec("pwd", cwd=f"{await work_folder(box)}/a b")
        assert there.stdout.endswith(b"/a b\n"), "cwd must be the folder that the command runs in"


@async_test
async def test_output_beyond_the_limit_is_cut_and_says_so(subject: Subject) -> None:
    async with started(subject) as (_, box):
        done = await box.exec("head -c 300000 /dev/zero | tr '\\0' x; echo end >&2", max_output_bytes=1000)
        assert len(done.stdout) == 1000, f"stdout must be cut at max_output_bytes=1000; it has {len(done.stdout)} bytes"
        assert done.truncated, "ExecResult.truncated must say that output was cut"
        assert done.exit_code == 0, "the command must go on when its output is cut"
        assert done.stderr == b"end\n", "stdout and stderr are cut each by itself"


@async_test
async def test_a_time_out_kills_everything_and_keeps_the_output_so_far(subject: Subject) -> None:
    async with started(subject) as (_, box):
        command = f"({LOOP}) & echo before; sleep 60; echo after"
        done = await asyncio.wait_for(box.exec(command, timeout_s=3.0), 30)
        assert done.timed_out, "ExecResult.timed_out must say so"
        assert done.exit_code == 124, (
            f"a time-out must give exit code 124, as timeout(1) does; it gave {done.exit_code}"
        )
        assert done.stdout == b"before\n", f"the output before the time-out must be kept; it was {done.stdout!r}"
        assert await counts_no_more(box), "a time-out must kill the whole process tree, background processes too"


@async_test
async def test_a_time_out_also_kills_processes_that_ignore_signals(subject: Subject) -> None:
    async with started(subject) as (_, box):
        done = await asyncio.wait_for(box.exec("trap '' TERM INT HUP; sleep 60 & wait; sleep 60", timeout_s=0.5), 30)
        assert done.timed_out, "a command that ignores SIGTERM must be killed at its time-out all the same"


@async_test
async def test_cancelling_exec_kills_the_command(subject: Subject) -> None:
    async with started(subject) as (_, box):
        for after_s in (0.0, 0.05, 0.3):
            assert await cancelled(box.exec(LOOP), after_s), "exec must not end before its command does"
        assert await ends_counting(box), "cancelling exec must kill what the command started"


@async_test
async def test_commands_run_side_by_side(subject: Subject) -> None:
    async with started(subject) as (_, box):
        meet = "until [ $(ls began-* | wc -l) = 8 ]; do sleep 0.05; done"
        lines = [f"touch began-{i}; {meet}; echo {i}; exit {i}" for i in range(8)]
        try:
            async with asyncio.timeout(15):
                results = await asyncio.gather(*(box.exec(line) for line in lines))
        except TimeoutError:
            raise AssertionError(
                "commands must run side by side; eight that wait for each other did not end in 15 s"
            ) from None
        assert [r.exit_code for r in results] == list(range(8)), "each command must get its own exit code"
        assert [r.stdout for r in results] == [f"{i}\n".encode() for i in range(8)], "outputs must not mix"


@async_test
async def test_kill_agent_processes_kills_background_processes(subject: Subject) -> None:
    async with started(subject) as (_, box):
        await box.exec(f"({LOOP}) >/dev/null 2>&1 &")
        await box.kill_agent_processes()
        assert await counts_no_more(box), "kill_agent_processes must end background processes of the agent"


# -- files -------------------------------------------------------------------------------------------------------


@async_test
async def test_files_are_the_same_after_upload_and_download(subject: Subject) -> None:
    files: Mapping[str, bytes] = {
        "text": b"hello\n",
        "every": EVERY_BYTE,
        "empty": b"",
        "deep/er/file": b"x",
        "größe ✓ 'q\" $HOME": b"name",
        "large": LARGE,
        "-rf": b"dash",
    }
    async with started(subject, files={"given/first": b"\x00spec"}) as (_, box):
        assert await box.download("given/first") == b"\x00spec", "spec.files must stand in the work folder"
        await box.upload(files)
        for path, data in files.items():
            found = await box.download(path)
            assert equal_without_diff(found, data), (
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


@async_test
async def test_downloads_of_missing_files_folders_and_too_large_files_are_refused(subject: Subject) -> None:
    why = "download of a path that is not there"
    async with started(subject, files={"folder/file": b"12345678"}) as (_, box):
        await fails_with(box.download("no/such/file"), FileNotFoundError, why=why)
        await fails_with(box.download("folder"), IsADirectoryError, why="download of a folder")
        await fails_with(
            box.download("folder/file", max_bytes=4), AleError, ValueError, OSError, why="a file over max_bytes"
        )
        assert await box.download("folder/file", max_bytes=8) == b"12345678", "max_bytes is the size that still passes"


@async_test
async def test_cancelled_transfers_leave_the_sandbox_usable(subject: Subject) -> None:
    async with started(subject) as (_, box):
        await box.upload({"large": LARGE})
        for after_s in (0.0, 0.005, 0.03):
            await cancelled(box.upload({"other": LARGE}), after_s)
            await cancelled(box.download("large"), after_s)
        assert equal_without_diff(await box.download("large"), LARGE), (
            "a cancelled transfer must not spoil another file"
        )
        assert (await box.exec("echo on")).stdout == b"on\n", "a sandbox must be usable after a cancelled transfer"
