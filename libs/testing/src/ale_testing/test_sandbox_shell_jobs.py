"""These tests check jobs of shells (`Shells`), time-outs and ends: a shell's end stops only what it started."""

from __future__ import annotations

import asyncio
import time

import pytest

from ale.errors import SandboxError
from ale.specs.sandbox import TESTS
from ale.specs.sandbox_protocols import Shells
from ale_testing.async_tests import async_test, cancelled, fails_with
from ale_testing.plugin_under_test import Subject
from ale_testing.sandbox_setup import counts_no_more, counts_on, ends_counting, needs, spec, started
from ale_testing.test_sandbox_shell import BEAT, opened, stdout_of

needs_shells = pytest.mark.ale_needs.with_args(Shells)


# -- jobs --------------------------------------------------------------------------------------------------------


@needs_shells
@async_test
async def test_late_output_of_a_job_is_not_in_the_next_commands_output(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        began = time.monotonic()
        done = await shell.run("(sleep 2; echo late; echo late >&2; sleep 60) & echo mine")
        assert time.monotonic() - began < 10, "a command must not wait for what it left in the background"
        assert done.stdout == b"mine\n"
        for _ in range(3):
            done = await shell.run("sleep 0.9; echo mine")
            assert (done.stdout, done.stderr) == (b"mine\n", b""), (
                "what an earlier command's background job writes belongs to nobody; a later command had "
                f"{done.output!r}"
            )


@needs_shells
@async_test
async def test_jobs_of_earlier_commands_can_be_awaited_and_ended(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run("(sleep 0.3; exit 5) & first=$!; sleep 60 & second=$!")
        assert (await shell.run("wait $first")).exit_code == 5, (
            "a job must be a child of the shell for later commands too"
        )
        assert (await shell.run("kill $second; wait $second")).exit_code == 143, "a job must be there to be ended"


@needs_shells
@async_test
async def test_a_time_out_ends_what_the_command_started_and_nothing_else(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run(f"x=1; greet() {{ echo hello; }}; mkdir in; cd in; ({BEAT}) >/dev/null 2>&1 & job=$!")
        command = (
            "x=2; echo before; echo err >&2; (setsid sh -c 'while :; do date > $0; sleep 0.05; done' ../own "
            "2>/dev/null &) ;"
            "sh -c \"trap '' TERM INT HUP; while :; do date > ../stubborn; sleep 0.05; done\" & sleep 60; echo after"
        )
        done = await asyncio.wait_for(shell.run(command, timeout_s=3.0), 30)
        assert (done.timed_out, done.exit_code) == (True, 124), f"a time-out must say so and give 124; it gave {done}"
        assert (done.stdout, done.stderr) == (b"before\n", b"err\n"), f"output until the time-out must be kept: {done}"
        await box.exec("rm -f own stubborn; sleep 0.5")
        assert (await box.exec("ls own stubborn")).stdout == b"", "a time-out must kill all that the command started"
        assert await counts_on(box), "a time-out must not end a background job of an earlier command"
        found = await stdout_of(shell, "greet; basename $PWD; echo $x; kill $job")
        assert found in ("hello\nin\n2", "hello\nin\n1"), (
            f"a shell must keep its state through a time-out; it had {found!r}"
        )


@needs_shells
@pytest.mark.parametrize(
    "command",
    ["while :; do :; done", "f() { while :; do sleep 0.1; done; }; f; echo on", "trap '' TERM; sleep 60; sleep 60"],
)
@async_test
async def test_a_time_out_reaches_a_shell_that_is_busy_itself(subject: Subject, command: str) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run("x=1")
        done = await asyncio.wait_for(shell.run(f"echo so; {command}", timeout_s=2), 30)
        assert (done.exit_code, done.stdout) == (124, b"so\n")
        assert await stdout_of(shell, "echo $x") == "1", "a shell must go on after a time-out, with what was set before"


@needs_shells
@async_test
async def test_cancelling_a_command_of_a_shell_ends_it(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run("x=1")
        for after_s in (0.0, 0.05, 0.3):
            assert await cancelled(shell.run(BEAT), after_s), "run must not end before its command does"
            assert await stdout_of(shell, "echo $x") == "1", "a shell must be usable after a cancelled command"
        assert await ends_counting(box), "cancelling run must end what the command started"


# -- several, and the end ----------------------------------------------------------------------------------------


@needs_shells
@async_test
async def test_a_shell_runs_one_command_at_a_time_and_shells_run_side_by_side(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as one, await opened(box) as other:
        await asyncio.gather(one.run("x=one; cd /"), other.run("x=other"))
        began = asyncio.get_running_loop().time()
        results = await asyncio.gather(
            *(shell.run(f"sleep 0.2; echo $x {i}") for i in range(4) for shell in (one, other)),
            box.exec("echo ${x-none}"),
        )
        took = asyncio.get_running_loop().time() - began
        assert [r.stdout.decode().strip() for r in results] == [
            *(f"{x} {i}" for i in range(4) for x in ("one", "other")),
            "none",
        ], "each shell has variables of its own, and each command its own output"
        assert took > 0.7, f"commands of one shell wait for each other; four of 0.2 s took {took:.1f} s"
        assert await stdout_of(one, "pwd") == "/"
        assert await stdout_of(other, "pwd") != "/", "each shell has a folder of its own"


@needs_shells
@async_test
async def test_closing_a_shell_ends_everything_that_it_started(subject: Subject) -> None:
    async with started(subject) as (_, box):
        shell, other = await opened(box), await opened(box)
        await other.run("sleep 60 & job=$!")
        await shell.run(f"({BEAT}) >/dev/null 2>&1 &")
        await shell.run("exit 3")
        await shell.run("(setsid sh -c 'while :; do date > later; sleep 0.05; done' &) 2>/dev/null")
        assert await counts_on(box), "what a command left in the background lives on after an exit"
        await asyncio.gather(shell.close(), shell.close())
        await shell.close()
        assert await counts_no_more(box), (
            "close must end the background jobs of the shell, those from before an exit too"
        )
        await box.exec("rm -f later; sleep 0.3")
        assert (await box.exec("ls later")).stdout == b"", "close must end what left the shell's session too"
        await fails_with(shell.run("true"), SandboxError, why="a command in a shell that was closed")
        assert await stdout_of(other, "kill $job && echo there") == "there", "close must end nothing of another shell"


@needs_shells
@async_test
async def test_a_shell_ends_with_its_sandbox(subject: Subject) -> None:
    async with subject.build() as provider:
        box = await provider.start_sandbox(spec(subject))
        shell = await box.open_shell()
        running = asyncio.ensure_future(shell.run("sleep 60"))
        waiting = asyncio.ensure_future(shell.run("echo never"))
        await asyncio.sleep(0.2)
        await box.stop()
        for call in (running, waiting):
            await fails_with(
                asyncio.wait_for(call, 20), SandboxError, why="a command in a shell whose sandbox is stopped"
            )
        await fails_with(shell.run("true"), SandboxError, why="a command in a shell after stop()")
        await fails_with(box.open_shell(), SandboxError, why="open_shell() after stop()")
        await shell.close()  # is no error


@needs_shells
@async_test
async def test_kill_agent_processes_ends_what_shells_run(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run(f"({BEAT}) >/dev/null 2>&1 &")
        running = asyncio.ensure_future(shell.run("sh -c 'echo > begun; exec sleep 60'"))
        await box.exec("until [ -e begun ]; do sleep 0.05; done")
        await box.kill_agent_processes()
        done = await asyncio.wait_for(running, 20)
        assert done.exit_code == 137, f"a command that was killed gives 137; it gave {done.exit_code}"
        assert await counts_no_more(box), "kill_agent_processes must end the jobs of shells"
        assert await stdout_of(shell, "echo on") == "on", "a shell must run commands after kill_agent_processes"


@needs_shells
@async_test
async def test_a_shell_begins_in_the_folder_and_with_the_environment_asked_for(subject: Subject) -> None:
    async with started(subject, files={"in/file": b"1"}, env={"FROM_SPEC": "sp ec"}) as (_, box):
        async with await box.open_shell(cwd="in", env={"MORE": "mö 'q' \"re"}) as shell:
            assert await stdout_of(shell, 'cat file; echo "|$FROM_SPEC|$MORE"') == "1|sp ec|mö 'q' \"re"
            await shell.run("exit 1")
            assert await stdout_of(shell, 'cat file; echo "|$FROM_SPEC|$MORE"') == "1|sp ec|mö 'q' \"re", (
                "also after an exit"
            )
        async with await box.open_shell(cwd="no/such/folder") as shell:
            done = await shell.run("echo here")
            assert (done.exit_code != 0, done.stdout) == (True, b""), "a folder that is not there is a failed command"


@needs_shells
@needs("users")
@async_test
async def test_a_shell_of_the_tests_runs_as_the_tests_user(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if "users" not in provider.capabilities:
            return
        await box.upload({"/tmp/hidden/test": b"answer"}, user=TESTS, mode=0o600)
        async with await box.open_shell(user=TESTS) as tests, await box.open_shell() as agent:
            assert await stdout_of(tests, "cd /tmp/hidden; cat test") == "answer", (
                "the tests' shell reads the tests' files"
            )
            assert b"answer" not in (await agent.run("cat /tmp/hidden/test")).stdout, "the agent's shell must not"
            assert await stdout_of(tests, "id -u") != await stdout_of(agent, "id -u"), (
                "each shell runs as the user asked for"
            )
