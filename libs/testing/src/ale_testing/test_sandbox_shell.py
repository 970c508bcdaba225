"""These tests check persistent shells (`Shells`): folder, variables and functions stay between commands,
and the output of each is its own."""

from __future__ import annotations

import pytest

from ale.specs.sandbox_protocols import Shell, Shells
from ale_testing.async_tests import async_test, equal_without_diff
from ale_testing.plugin_under_test import Subject
from ale_testing.sandbox_setup import EVERY_BYTE, LOOP, started

needs_shells = pytest.mark.ale_needs.with_args(Shells)

BEAT = LOOP.replace("beat", "$HERE/beat")
"""Counts in a file in the shell's first folder, even after `cd`."""


async def opened(box: Shells) -> Shell:
    """A shell that knows its first folder as $HERE."""
    shell = await box.open_shell()
    assert (await shell.run("HERE=$PWD")).exit_code == 0, "a shell must run a command"
    return shell


async def stdout_of(shell: Shell, command: str) -> str:
    """What a command writes to stdout, without the last end of line; it must not fail."""
    done = await shell.run(command)
    assert done.exit_code == 0, f"{command!r} must not fail; it gave {done.exit_code}: {done.output}"
    return done.stdout.decode().rstrip("\n")


# -- what stays --------------------------------------------------------------------------------------------------


@needs_shells
@async_test
async def test_a_command_in_a_shell_returns_exit_code_stdout_and_stderr(subject: Subject) -> None:
    async with started(subject) as (_, box), await box.open_shell() as shell:
        done = await shell.run("printf out; printf err >&2; (exit 7)")
        assert done.exit_code == 7, f"run must give the command's exit code, 7; it gave {done.exit_code}"
        assert (done.stdout, done.stderr) == (b"out", b"err"), "run must keep stdout and stderr apart and whole"
        assert not done.timed_out, "a command that ended by itself did not time out"
        assert not done.truncated, "short output is not truncated"
        assert done.duration_s > 0, "duration_s must be measured"
        assert (await shell.run("cat")).stdout == b"", "a command's stdin is empty: it must not wait for input"
        for command, code in (("no-such-program-here", 127), ("false", 1), ("true", 0)):
            assert (await shell.run(command)).exit_code == code, f"{command!r} must give {code}"


@needs_shells
@async_test
async def test_a_shell_keeps_its_folder_variables_and_functions(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run(
            "mkdir -p 'a b'; cd 'a b'; x='1 2'; export Y=\"it's\"; greet() { echo \"hello $1\"; }; umask 027"
        )
        assert (await stdout_of(shell, "pwd")).endswith("/a b"), "the folder must stay from one command to the next"
        assert await stdout_of(shell, 'echo "$x|$Y"; sh -c \'echo "$x|$Y"\'') == "1 2|it's\n|it's", (
            "variables must stay, exported or not as they were"
        )
        assert await stdout_of(shell, "greet you") == "hello you", "functions must stay"
        assert await stdout_of(shell, "umask") in ("0027", "027"), "the umask must stay"
        assert (await shell.run("unset x; (exit 3)")).exit_code == 3
        assert await stdout_of(shell, 'echo "$?${x-gone}"') == "3gone", "$? is the exit code of the command before"
        assert b"1 2" not in (await box.exec("echo $x")).stdout, "a shell's variables must stay in the shell"


ENDS = [("exit 7", 7), ("exec true", 0), ("kill -9 $$", 137), ("set -e; false; echo on", 1), ("exec sh -c 'exit 9'", 9)]


@needs_shells
@pytest.mark.parametrize(("command", "code"), ENDS, ids=[command for command, _ in ENDS])
@async_test
async def test_an_exit_in_a_command_does_not_end_the_shell_for_later_commands(
    subject: Subject, command: str, code: int
) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run("mkdir -p in; cd in; x=1; export Y='a  b'; greet() { echo hello; }")
        done = await shell.run(f"echo before; {command}")
        assert done.exit_code == code, f"{command!r} must give {code}, as it does in a shell; it gave {done.exit_code}"
        assert done.stdout == b"before\n", f"the output of a command that ends the shell must be kept: {done.stdout!r}"
        found = await stdout_of(shell, 'basename "$PWD"; echo $x; sh -c \'echo "$Y$x"\'; greet; echo $-')
        *lines, options = found.split("\n")
        assert lines == ["in", "1", "a  b", "hello"], (
            f"after {command!r} the next command must find folder, variables and functions as they were; it found "
            f"{lines}"
        )
        assert "e" not in options, "a shell that ended for set -e must not begin with it again"


@needs_shells
@async_test
async def test_state_set_before_an_exit_is_kept(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        for number in (1, 2):
            await shell.run(f"mkdir -p d{number}; cd d{number}; x={number}; exit {number}")
        assert await stdout_of(shell, 'echo "$x $(basename "$PWD")"') == "2 d2", (
            "what was set before an exit must be there after it"
        )


@needs_shells
@async_test
async def test_a_syntax_error_is_a_failed_command_and_the_shell_lives(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        await shell.run("x=1; sleep 60 & job=$!")
        for wrong in ("if", "echo 'open", "for", ")", "case x in"):
            done = await shell.run(wrong)
            assert done.exit_code != 0, f"{wrong!r} must be a failed command"
            assert done.stderr, f"{wrong!r} must say what is wrong with it"
        assert await stdout_of(shell, "echo $x; kill $job && echo ended") == "1\nended", (
            "a syntax error must not end the shell"
        )


# -- any command text, any bytes of output -------------------------------------------------------------------------


@needs_shells
@async_test
async def test_commands_may_be_any_text_and_output_any_bytes(subject: Subject) -> None:
    async with started(subject, files={"every": EVERY_BYTE * 300}) as (_, box), await opened(box) as shell:
        done = await shell.run("cat every; cat every >&2")
        assert equal_without_diff((done.stdout, done.stderr), (EVERY_BYTE * 300,) * 2), (
            "output must be what was written, byte by byte"
        )
        assert (
            await stdout_of(shell, "printf '%s' 'dö ✓ \U0001f600 \"$x\" `y` \\ '\"'\"")
            == 'dö ✓ \U0001f600 "$x" `y` \\ \''
        )
        assert await stdout_of(shell, "cat <<'EOF'\n  $x\n\n'\"\\\nEOF\necho end") == "  $x\n\n'\"\\\nend", (
            "a command may have several lines, and here-documents"
        )
        long = "x" * 200_000
        assert await stdout_of(shell, f"y={long}; echo ${{#y}}") == "200000", "a command may be long"
        assert (await shell.run("echo \0")).exit_code != 0, "a command with a NUL byte must be a failed one"
        half = await shell.run("printf 'a\ud800b'")  # a policy's JSON may hold half a character
        assert half.stdout.startswith(b"a") or half.exit_code != 0, (
            "a command with half a character (a surrogate, \\ud800) runs as bytes, or is a failed command"
        )
        assert await stdout_of(shell, "echo on") == "on"


@needs_shells
@async_test
async def test_output_that_looks_like_the_shells_reports_is_still_output(subject: Subject) -> None:
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
                f"output must not be mistaken for the shell's own reports; {line!r} gave {done}"
            )


@needs_shells
@async_test
async def test_output_of_a_shell_is_cut_at_the_limit(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        done = await shell.run("head -c 3000000 /dev/zero; echo end >&2; x=1", max_output_bytes=1000)
        assert (len(done.stdout), done.stderr, done.truncated) == (1000, b"end\n", True), "each output is cut by itself"
        assert done.exit_code == 0, "the command must go on when its output is cut"
        assert await stdout_of(shell, "echo $x") == "1"


@needs_shells
@async_test
async def test_a_hundred_commands_one_after_another(subject: Subject) -> None:
    async with started(subject) as (_, box), await opened(box) as shell:
        for number in range(100):
            done = await shell.run(f"n=$((n+1)); echo $n; echo e{number} >&2; (exit {number})")
            assert (done.exit_code, done.stdout, done.stderr) == (
                number,
                f"{number + 1}\n".encode(),
                f"e{number}\n".encode(),
            )
