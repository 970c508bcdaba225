"""Shells that stay (capability `shell`): what one command leaves is there for the next, and nothing else of it is."""

from __future__ import annotations

import asyncio
import time

import pytest

from ale.errors import SandboxError
from ale.specs.sandbox import TESTS, Sandbox, Shell
from ale.testing.scenario import cancelled, fails_with, same, scenario
from ale.testing.subject import Subject
from ale.testing.test_sandbox import EVERY_BYTE, LOOP, needs, spec, started

pytestmark = pytest.mark.ale_needs("shell")

BEAT = LOOP.replace("beat", "$HERE/beat")
"""Counts where the shell began, wherever it is."""


async def opened(box: Sandbox) -> Shell:
    """A shell that knows its first folder as $HERE."""
    shell = await box.open_shell()
    assert (await shell.run("HERE=$PWD")).exit_code == 0, "a shell must run a command"
    return shell


async def said(shell: Shell, command: str) -> str:
    """What a command writes to stdout, without the last end of line; it must not fail."""
    done = await shell.run(command)
    assert done.exit_code == 0, f"{command!r} must not fail; it gave {done.exit_code}: {done.output}"
    return done.stdout.decode().rstrip("\n")


async def beats(box: Sandbox) -> bool:
    """Whether the loop runs on."""
    told = (await box.exec("cat beat 2>/dev/null; sleep 0.5; cat beat 2>/dev/null")).stdout.split()
    return bool(told) and told[0] != told[-1]


# -- what stays --------------------------------------------------------------------------------------------------


@scenario
async def test_a_command_in_a_shell_has_its_exit_code_and_both_outputs(subject: Subject) -> None:
    async with started(subject) as (_, box), await box.open_shell() as shell:
        done = await shell.run("printf out; printf err >&2; (exit 7)")
        assert done.exit_code == 7, f"run must give the command's exit code, 7; it gave {done.exit_code}"
        assert (done.stdout, done.stderr) == (b"out", b"err"), "run must keep stdout and stderr apart and whole"
        assert not done.timed_out, "a command that ended by itself did not time out"
        assert not done.truncated, "short output is not truncated"
        assert done.duration_s > 0, "duration_s must be measured"
        assert (await shell.run("cat")).stdout == b"", "a command in a shell reads an end of file, it must not wait"
        for command, code in (("no-such-program-here", 127), ("false", 1), ("true", 0)):
            assert (await shell.run(command)).exit_code == code, f"{command!r} must give {code}"


@scenario
async def test_folder_variables_and_functions_stay(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run(
            "mkdir -p 'a b'; cd 'a b'; x='1 2'; export Y=\"it's\"; greet() { echo \"hello $1\"; }; umask 027"
        )
        assert (await said(shell, "pwd")).endswith("/a b"), "the folder must stay from one command to the next"
        assert await said(shell, 'echo "$x|$Y"; sh -c \'echo "$x|$Y"\'') == "1 2|it's\n|it's", (
            "variables must stay, exported or not as they were"
        )
        assert await said(shell, "greet you") == "hello you", "functions must stay"
        assert await said(shell, "umask") in ("0027", "027"), "the umask must stay"
        assert (await shell.run("unset x; (exit 3)")).exit_code == 3
        assert await said(shell, 'echo "$?${x-gone}"') == "3gone", "$? is the exit code of the command before"
        assert b"1 2" not in (await box.exec("echo $x")).stdout, "a shell's variables must stay in the shell"


ENDS = [("exit 7", 7), ("exec true", 0), ("kill -9 $$", 137), ("set -e; false; echo on", 1), ("exec sh -c 'exit 9'", 9)]


@pytest.mark.parametrize(("command", "code"), ENDS, ids=[command for command, _ in ENDS])
@scenario
async def test_a_command_that_ends_the_shell_ends_it_for_nobody_else(subject: Subject, command: str, code: int) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run("mkdir -p in; cd in; x=1; export Y='a  b'; greet() { echo hello; }")
        done = await shell.run(f"echo before; {command}")
        assert done.exit_code == code, f"{command!r} must give {code}, as it does in a shell; it gave {done.exit_code}"
        assert done.stdout == b"before\n", f"the output of a command that ends the shell must be kept: {done.stdout!r}"
        found = await said(shell, 'basename "$PWD"; echo $x; sh -c \'echo "$Y$x"\'; greet; echo $-')
        *lines, options = found.split("\n")
        assert lines == ["in", "1", "a  b", "hello"], (
            f"after {command!r} the next command must find folder, variables and functions as they were; it found {lines}"
        )
        assert "e" not in options, "a shell that ended for set -e must not begin with it again"


@scenario
async def test_what_a_command_did_before_it_ended_the_shell_is_kept(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        for number in (1, 2):
            await shell.run(f"mkdir -p d{number}; cd d{number}; x={number}; exit {number}")
        assert await said(shell, 'echo "$x $(basename "$PWD")"') in ("2 d2", "1 d1"), (
            "what was set before an exit must be there after it"
        )


@scenario
async def test_a_syntax_error_is_a_failed_command_and_the_shell_lives(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run("x=1; sleep 60 & job=$!")
        for wrong in ("if", "echo 'open", "for", ")", "case x in"):
            done = await shell.run(wrong)
            assert done.exit_code != 0, f"{wrong!r} must be a failed command"
            assert done.stderr, f"{wrong!r} must say what is wrong with it"
        assert await said(shell, "echo $x; kill $job && echo ended") == "1\nended", (
            "a syntax error must not end the shell"
        )


# -- commands as they are written, output as it is ---------------------------------------------------------------


@scenario
async def test_commands_may_be_any_text_and_output_any_bytes(subject: Subject) -> None:
    async with started(subject, files={"every": EVERY_BYTE * 300}) as (_, box), await opened(box) as shell:
        done = await shell.run("cat every; cat every >&2")
        assert same((done.stdout, done.stderr), (EVERY_BYTE * 300,) * 2), (
            "output must be what was written, byte by byte"
        )
        assert (
            await said(shell, "printf '%s' 'dö ✓ \U0001f600 \"$x\" `y` \\ '\"'\"") == 'dö ✓ \U0001f600 "$x" `y` \\ \''
        )
        assert await said(shell, "cat <<'EOF'\n  $x\n\n'\"\\\nEOF\necho end") == "  $x\n\n'\"\\\nend", (
            "a command may have several lines, and documents in them"
        )
        long = "x" * 200_000
        assert await said(shell, f"y={long}; echo ${{#y}}") == "200000", "a command may be long"
        assert (await shell.run("echo \0")).exit_code != 0, "a command with a NUL byte must be a failed one"
        half = await shell.run("printf 'a\ud800b'")  # a policy's JSON may hold half a character
        assert half.stdout.startswith(b"a") or half.exit_code != 0, (
            "a command with half a character (a surrogate, \\ud800) runs as bytes, or is a failed command"
        )
        assert await said(shell, "echo on") == "on"


@scenario
async def test_output_that_looks_like_the_shells_own_is_output(subject: Subject) -> None:
    lines = [
        "0",
        "$ ",
        "bash-5.2$ ",
        "d 2 0",
        "s 2",
        "r 1",
        "exit_code=0",
        "__END__ 0",
        "\x01\x02",
        "EOF",
        "\x1b[?2004h",
    ]
    async with started(subject) as (_, box), await opened(box) as shell:
        for line in lines:
            done = await shell.run(f"printf '%s\\n' '{line}' '{line}' >&2; printf '%s' '{line}'; (exit 3)")
            assert (done.exit_code, done.stdout, done.stderr) == (3, line.encode(), f"{line}\n{line}\n".encode()), (
                f"output must be taken for nothing else; {line!r} gave {done}"
            )


@scenario
async def test_output_of_a_shell_is_cut_at_the_limit(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        done = await shell.run("head -c 3000000 /dev/zero; echo end >&2; x=1", max_output_bytes=1000)
        assert (len(done.stdout), done.stderr, done.truncated) == (1000, b"end\n", True), "each output is cut by itself"
        assert done.exit_code == 0, "the command must go on when its output is cut"
        assert await said(shell, "echo $x") == "1"


@scenario
async def test_a_hundred_commands_one_after_another(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        for number in range(100):
            done = await shell.run(f"n=$((n+1)); echo $n; echo e{number} >&2; (exit {number})")
            assert (done.exit_code, done.stdout, done.stderr) == (
                number,
                f"{number + 1}\n".encode(),
                f"e{number}\n".encode(),
            )


# -- jobs --------------------------------------------------------------------------------------------------------


@scenario
async def test_what_a_job_writes_later_is_no_later_commands_output(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        began = time.monotonic()
        done = await shell.run("(sleep 0.6; echo late; echo late >&2; sleep 60) & echo mine")
        assert time.monotonic() - began < 10, "a command must not wait for what it left in the background"
        assert done.stdout == b"mine\n"
        for _ in range(3):
            done = await shell.run("sleep 0.5; echo mine")
            assert (done.stdout, done.stderr) == (b"mine\n", b""), (
                f"what an earlier command's background job writes belongs to nobody; a later command had {done.output!r}"
            )


@scenario
async def test_jobs_of_earlier_commands_can_be_awaited_and_ended(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run("(sleep 0.3; exit 5) & first=$!; sleep 60 & second=$!")
        assert (await shell.run("wait $first")).exit_code == 5, (
            "a job must be a child of the shell for later commands too"
        )
        assert (await shell.run("kill $second; wait $second")).exit_code == 143, "a job must be there to be ended"


@scenario
async def test_a_time_out_ends_what_the_command_started_and_nothing_else(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run(f"x=1; greet() {{ echo hello; }}; mkdir in; cd in; ({BEAT}) >/dev/null 2>&1 & job=$!")
        command = (
            "x=2; echo before; echo err >&2; (setsid sh -c 'while :; do date > $0; sleep 0.05; done' ../own 2>/dev/null &) ;"
            "sh -c \"trap '' TERM INT HUP; while :; do date > ../stubborn; sleep 0.05; done\" & sleep 60; echo after"
        )
        done = await asyncio.wait_for(shell.run(command, timeout_s=1.0), 30)
        assert (done.timed_out, done.exit_code) == (True, 124), f"a time-out must say so and give 124; it gave {done}"
        assert (done.stdout, done.stderr) == (b"before\n", b"err\n"), f"output until the time-out must be kept: {done}"
        await box.exec("rm -f own stubborn; sleep 0.5")
        assert (await box.exec("ls own stubborn")).stdout == b"", "a time-out must kill all that the command started"
        assert await beats(box), "a time-out must not end a background job of an earlier command"
        found = await said(shell, "greet; basename $PWD; echo $x; kill $job")
        assert found in ("hello\nin\n2", "hello\nin\n1"), (
            f"a shell must keep its state through a time-out; it had {found!r}"
        )


@pytest.mark.parametrize(
    "command",
    ["while :; do :; done", "f() { while :; do sleep 0.1; done; }; f; echo on", "trap '' TERM; sleep 60; sleep 60"],
)
@scenario
async def test_a_time_out_reaches_a_shell_that_is_busy_itself(subject: Subject, command: str) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run("x=1")
        done = await asyncio.wait_for(shell.run(f"echo so; {command}", timeout_s=0.5), 30)
        assert (done.exit_code, done.stdout) == (124, b"so\n")
        assert await said(shell, "echo $x") == "1", "a shell must go on after a time-out, with what was set before"


@scenario
async def test_cancelling_a_command_of_a_shell_ends_it(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run("x=1")
        for after_s in (0.0, 0.05, 0.3):
            assert await cancelled(shell.run(BEAT), after_s), "run must not end before its command does"
            assert await said(shell, "echo $x") == "1", "a shell must be usable after a cancelled command"
        assert not await beats(box), "cancelling run must end what the command started"


# -- several, and the end ----------------------------------------------------------------------------------------


@scenario
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
            *(f"{x} {i}" for i in range(4) for x in ("one", "other")), "none",
        ], "each shell has variables of its own, and each command its own output"  # fmt: skip
        assert took > 0.7, f"commands of one shell wait for each other; four of 0.2 s took {took:.1f} s"
        assert await said(one, "pwd") == "/"
        assert await said(other, "pwd") != "/", "each shell has a folder of its own"


@scenario
async def test_closing_a_shell_ends_everything_that_it_started(subject: Subject) -> None:
    async with started(subject) as (_, box):
        shell, other = await opened(box), await opened(box)
        await other.run("sleep 60 & job=$!")
        await shell.run(f"({BEAT}) >/dev/null 2>&1 &")
        await shell.run("exit 3")
        await shell.run("(setsid sh -c 'while :; do date > later; sleep 0.05; done' &) 2>/dev/null")
        assert await beats(box), "what a command left in the background lives on after an exit"
        await asyncio.gather(shell.close(), shell.close())
        await shell.close()
        assert not await beats(box), "close must end the background jobs of the shell, those from before an exit too"
        await box.exec("rm -f later; sleep 0.3")
        assert (await box.exec("ls later")).stdout == b"", "close must end what left the shell's session too"
        await fails_with(shell.run("true"), SandboxError, why="a command in a shell that was closed")
        assert await said(other, "kill $job && echo there") == "there", "close must end nothing of another shell"


@scenario
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


@scenario
async def test_kill_agent_processes_ends_what_shells_run(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run(f"({BEAT}) >/dev/null 2>&1 &")
        running = asyncio.ensure_future(shell.run("sleep 60"))
        await asyncio.sleep(0.3)
        await box.kill_agent_processes()
        done = await asyncio.wait_for(running, 20)
        assert done.exit_code == 137, f"a command that was killed gives 137; it gave {done.exit_code}"
        assert not await beats(box), "kill_agent_processes must end the jobs of shells"
        assert await said(shell, "echo on") == "on", "a shell must run commands after kill_agent_processes"


@scenario
async def test_a_shell_begins_in_the_folder_and_with_the_environment_asked_for(subject: Subject) -> None:
    async with started(subject, files={"in/file": b"1"}, env={"FROM_SPEC": "sp ec"}) as (_, box):
        async with await box.open_shell(cwd="in", env={"MORE": "mö 'q' \"re"}) as shell:
            assert await said(shell, 'cat file; echo "|$FROM_SPEC|$MORE"') == "1|sp ec|mö 'q' \"re"
            await shell.run("exit 1")
            assert await said(shell, 'cat file; echo "|$FROM_SPEC|$MORE"') == "1|sp ec|mö 'q' \"re", (
                "also after an exit"
            )
        async with await box.open_shell(cwd="no/such/folder") as shell:
            done = await shell.run("echo here")
            assert (done.exit_code != 0, done.stdout) == (True, b""), "a folder that is not there is a failed command"


@needs("users")
@scenario
async def test_a_shell_of_the_tests_is_the_tests_users(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if "users" not in provider.capabilities:
            return
        await box.upload({"/tmp/hidden/test": b"answer"}, user=TESTS, mode=0o600)
        async with await box.open_shell(user=TESTS) as tests, await box.open_shell() as agent:
            assert await said(tests, "cd /tmp/hidden; cat test") == "answer", "the tests' shell reads the tests' files"
            assert b"answer" not in (await agent.run("cat /tmp/hidden/test")).stdout, "the agent's shell must not"
            assert await said(tests, "id -u") != await said(agent, "id -u"), "each shell runs as the user asked for"
