"""Deliberately wrong shells and streams of sandboxes: each breaks one rule of the contract, and the kit says which."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong import AWAITED_S, SANDBOX, Wrong, assert_found

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]

SHELL = (
    SANDBOX
    + """
        real = box.open_shell
        async def open_shell(**more):
            return Other(await real(**more), box)
        box.open_shell = open_shell
class Other(Shell):
    def __init__(self, inner, box):
        self.inner, self.box = inner, box
    async def run(self, command, **more):
        return await self.inner.run(command, **more)
    async def close(self):
        await self.inner.close()
"""
)
STREAM = (
    SANDBOX
    + """
        real = box.exec_stream
        async def exec_stream(command, **more):
"""
)

WRONG = {
    "a shell that gives late output to the next command": Wrong(
        "sandbox",
        SHELL
        + """
    async def run(self, command, **more):
        done = await self.inner.run(f"{{ {command}\\n}} >>$HOME/log", **more)
        said = await self.inner.run("cat $HOME/log; : >$HOME/log")
        return ExecResult(done.exit_code, said.stdout, done.stderr, done.duration_s, done.timed_out)
""",
        "test_late_output_of_a_job_is_not_in_the_next_commands_output",
        "what an earlier command's background job writes belongs to nobody",
    ),
    "a shell that forgets its folder when it is ended": Wrong(
        "sandbox",
        SHELL
        + """
    async def run(self, command, **more):
        done = await self.inner.run(command, **more)
        if command.endswith("; exit 7"):
            await self.inner.run("cd $HERE")
        return done
""",
        "test_an_exit_in_a_command_does_not_end_the_shell_for_later_commands",
        "the next command must find folder, variables and functions as they were",
    ),
    "a shell that is a new one each time": Wrong(
        "sandbox",
        SHELL
        + """
    async def run(self, command, **more):
        return await self.box.exec(command, **more)
""",
        "test_a_shell_keeps_its_folder_variables_and_functions",
        "the folder must stay from one command to the next",
    ),
    "a shell that ends at a syntax error": Wrong(
        "sandbox",
        SHELL
        + """
    async def run(self, command, **more):
        done = await self.inner.run(command, **more)
        if done.exit_code == 2:
            await self.inner.close()
            self.inner = await type(self.box).open_shell(self.box)
        return done
""",
        "test_a_syntax_error_is_a_failed_command_and_the_shell_lives",
        "must not fail; it gave",
    ),
    "a shell that finds its end in the output": Wrong(
        "sandbox",
        SHELL
        + """
    async def run(self, command, **more):
        done = await self.inner.run(command, **more)
        stdout = done.stdout.partition(b"__END__")[0]
        return ExecResult(done.exit_code, stdout, done.stderr, done.duration_s, done.timed_out)
""",
        "test_output_that_looks_like_the_shells_reports_is_still_output",
        "output must not be mistaken for the shell's own reports",
    ),
    "a shell of text": Wrong(
        "sandbox",
        SHELL
        + """
    async def run(self, command, **more):
        done = await self.inner.run(command, **more)
        stdout = done.stdout.replace(b"\\r", b"")
        return ExecResult(done.exit_code, stdout, done.stderr, done.duration_s, done.timed_out)
""",
        "test_commands_may_be_any_text_and_output_any_bytes",
        "output must be what was written, byte by byte",
    ),
    "a time-out that ends earlier jobs": Wrong(
        "sandbox",
        SHELL
        + """
    async def run(self, command, **more):
        done = await self.inner.run(command, **more)
        if done.timed_out:
            await self.box.kill_agent_processes()
        return done
""",
        "test_a_time_out_ends_what_the_command_started_and_nothing_else",
        "a time-out must not end a background job of an earlier command",
    ),
    "a time-out that leaves what has a session of its own": Wrong(
        "sandbox",
        SHELL
        + """
    async def run(self, command, timeout_s=60.0, **more):
        if timeout_s >= 60:
            return await self.inner.run(command, **more)
        await self.box.upload({"in/script": command.encode()})
        done = await self.inner.run(f"timeout -k 0 {timeout_s} sh script", **more)
        return ExecResult(124, done.stdout, done.stderr, done.duration_s, True)
""",
        "test_a_time_out_ends_what_the_command_started_and_nothing_else",
        "a time-out must kill all that the command started",
    ),
    "a shell that is left running": Wrong(
        "sandbox",
        SHELL
        + """
    async def close(self):
        self.run = self.gone
    async def gone(self, command):
        raise SandboxError("closed")
""",
        "test_closing_a_shell_ends_everything_that_it_started",
        "close must end the background jobs of the shell",
    ),
    "a shell that outlives its sandbox as a failed command": Wrong(
        "sandbox",
        SHELL
        + """
    async def run(self, command, **more):
        try:
            return await self.inner.run(command, **more)
        except SandboxError:
            return ExecResult(1, b"", b"gone", 0.1)
""",
        "test_a_shell_ends_with_its_sandbox",
        "a command in a shell whose sandbox is stopped: it must raise SandboxError, it returned ExecResult",
    ),
    "a stream that comes at the end": Wrong(
        "sandbox",
        STREAM
        + """
            for item in [item async for item in real(command, **more)]:
                yield item
        box.exec_stream = exec_stream
""",
        "test_output_arrives_while_the_command_runs",
        "output must come as it is written, not when the command has ended",
        timeout_s=AWAITED_S,
    ),
    "a stream whose command outlives its reader": Wrong(
        "sandbox",
        STREAM
        + """
            queue = asyncio.Queue()
            async def read():
                async for item in real(command, **more):
                    queue.put_nowait(item)
            task = asyncio.create_task(read())
            while not task.done() or not queue.empty():
                yield await queue.get()
        box.exec_stream = exec_stream
""",
        "test_a_reader_that_leaves_ends_the_command",
        "leaving a stream before its end must end its command",
    ),
    "a stream that reads ahead": Wrong(
        "sandbox",
        STREAM
        + """
            queue = asyncio.Queue()
            async def read():
                async for item in real(command, **more):
                    queue.put_nowait(item)
            task = asyncio.create_task(read())
            try:
                while not task.done() or not queue.empty():
                    yield await queue.get()
            finally:
                task.cancel()
                await asyncio.wait([task])
        box.exec_stream = exec_stream
""",
        "test_a_slow_reader_delays_only_its_own_command",
        "a command whose output is not read must wait",
    ),
    "a stream that is cut": Wrong(
        "sandbox",
        STREAM
        + """
            left = 1 << 20
            async for item in real(command, **more):
                if isinstance(item, Output):
                    left -= len(item.data)
                if left > 0 or isinstance(item, ExecResult):
                    yield item
        box.exec_stream = exec_stream
""",
        "test_a_stream_is_complete_and_unchanged",
        "stdout must come whole",
    ),
    "a result with the output in it again": Wrong(
        "sandbox",
        STREAM
        + """
            said = b""
            async for item in real(command, **more):
                if isinstance(item, Output):
                    said += item.data
                    yield item
                else:
                    yield ExecResult(item.exit_code, said, b"", item.duration_s, item.timed_out)
        box.exec_stream = exec_stream
""",
        "test_a_streamed_command_behaves_like_any_other",
        "the result must hold no output",
    ),
}


@pytest.mark.parametrize("what", WRONG, ids=lambda what: what.replace(" ", "-"))
def test_the_kit_says_what_is_wrong(what: str, tmp_path: Path) -> None:
    assert_found(WRONG[what], tmp_path)
