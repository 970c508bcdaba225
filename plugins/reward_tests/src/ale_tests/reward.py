"""The reward of hidden tests: run the task's test command where the agent worked, and look at its exit code.

1. The agent's processes are ended. Then one shell command does all: it reads a script from its standard input that
   writes the test files into a fresh folder with an unguessable name, closed to other users, and runs the task's
   command in the work folder with that folder's path in `ALE_TESTS`. It runs as the user `tests`; a provider
   without the capability `users` takes the agent for that. The folder stands in one with an empty `pytest.ini`:
   pytest looks for settings and hooks in all folders above a test, and the temporary folder is the agent's too.
2. Exit code 0 is a pass; any other code, and a time-out (but for `timed_out: no_reward`), is a fail.
3. Tests that *cannot run* are an error and no fail: a dead sandbox raises `SandboxError`, a test command that starts
   with a program which the sandbox lacks raises `TaskError`. But an agent must not be able to turn its failure into an
   error, so exit codes 126 and 127 count as "cannot run" only where the first word of the command is a plain name
   (not a path, so not something the agent was to write) that the sandbox's shell does not know. Test files that
   cannot be written in a living sandbox are a fail: the agent filled or locked the temporary folder.
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from pathlib import PurePosixPath
from typing import ClassVar, Literal

from pydantic import Field

from ale.errors import SandboxError, TaskError
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.reward import Reward
from ale.specs.sandbox import TESTS, ExecResult, Sandbox
from ale.task import Task
from ale.trajectory import Score, Trajectory

DETAIL_CHARS = 2000
CANNOT_RUN = (126, 127)
KILLED = 128
"""A larger exit code means that a signal killed the shell, which an agent's code can do."""
FOLDER = "${TMPDIR:-/tmp}"
NO_ROOM = "'The tests could not be put in place: the agent left no room or no right to write them.'"
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
NAME = re.compile(r"[A-Za-z0-9_.+-]+")


class TestsRewardConfig(PluginConfig):
    """Settings of the tests reward."""

    __test__ = False
    pass_value: float = Field(1.0, description="Reward if the tests pass.")
    fail_value: float = Field(0.0, description="Reward if the tests fail or run out of time.")
    timed_out: Literal["fail", "no_reward"] = Field(
        "fail",
        description=(
            "What a time-out of the tests means. no_reward: the reward could not be computed, and the rollout is "
            "sampled again; use this only for tests that the agent's work cannot slow down, because the agent "
            "could otherwise avoid a failure."
        ),
    )


class TestsReward(Driver, Reward):
    """Scores with the task's hidden tests."""

    api_version = ">=1.0,<1.2"
    __test__ = False  # a class whose name starts with Test is not a test here
    Config: ClassVar[type[PluginConfig]] = TestsRewardConfig
    config: TestsRewardConfig

    def __init__(self, config: TestsRewardConfig, context: DriverContext) -> None:
        super().__init__(config, context)

    async def score(self, task: Task, sandbox: Sandbox, trajectory: Trajectory) -> Score:
        started = time.monotonic()
        name = f"ale-tests-{secrets.token_hex(16)}"
        script = test_script(task, name)
        await sandbox.kill_agent_processes()
        env = {"PYTHONNOUSERSITE": "1", **task.env}
        result = await sandbox.exec('eval "$(cat)"', stdin=script, timeout_s=task.tests.timeout_s, env=env, user=TESTS)
        if result.timed_out or result.exit_code > KILLED:  # the script did not reach its last line
            await self.remove_test_files(sandbox, name)
        if result.timed_out:
            limit = f"The tests did not end within {task.tests.timeout_s:g} s.\n"
            if self.config.timed_out == "no_reward":
                raise TaskError(f"Task {task.id}: {limit}{end_of_output(result)}")
            return self.make_score(False, limit + end_of_output(result), started)
        if result.exit_code in CANNOT_RUN:
            await refuse_missing_program(task, sandbox)
        return self.make_score(result.exit_code == 0, end_of_output(result), started)

    def make_score(self, passed: bool, detail: str, started: float) -> Score:
        """The score for a pass or a fail."""
        value = self.config.pass_value if passed else self.config.fail_value
        return Score(value, passed, detail, time.monotonic() - started)

    @staticmethod
    async def remove_test_files(sandbox: Sandbox, name: str) -> None:
        """Remove the test files of a script that was cut off. The score is the same where this fails."""
        try:
            await sandbox.exec(f"rm -rf {FOLDER}/{name}", timeout_s=10, cwd="/", user=TESTS)
        except SandboxError:
            return


def test_script(task: Task, name: str) -> bytes:
    """The script: make the folder, write the files, run the command away from the script's input, clean up."""
    folders, writes = {"."}, []
    for file, text in task.tests.files.items():
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in file + text:
            raise TaskError(
                f"Task {task.id}: the test file {file!r} must be text without NUL, at a relative path that stays "
                "inside the tests' folder."
            )
        folders.add(str(path.parent))
        writes.append(f'printf %s {shlex.quote(text)} > "$ALE_TESTS"/{shlex.quote(str(path))}')
    places = " ".join(f'"$ALE_TESTS"/{shlex.quote(folder)}' for folder in sorted(folders))
    steps = [f"mkdir -p {places}", ': > "$ale_place"/pytest.ini', *writes, 'chmod -R u+x "$ALE_TESTS"']
    lines = (
        f'ale_place="{FOLDER}/{name}"; export ALE_TESTS="$ale_place"/tests',
        "ale_umask=$(umask); umask 077",
        f'{{ {" && ".join(steps)}; }} || {{ echo {NO_ROOM}; rm -rf "$ale_place"; exit 1; }}',
        'umask "$ale_umask"',
        f"(unset ale_umask ale_place; eval {shlex.quote(task.tests.command)}) </dev/null",
        'ale_code=$?; rm -rf "$ale_place"; exit $ale_code',
    )
    return "\n".join(lines).encode("utf-8", "surrogateescape")


async def refuse_missing_program(task: Task, sandbox: Sandbox) -> None:
    """Raise where the program that the test command starts with does not exist in the sandbox."""
    word = first_word(task.tests.command)
    if word is None:
        return
    result = await sandbox.exec(f"command -v {word}", timeout_s=10, env=task.env, cwd="/", user=TESTS)
    if result.exit_code != 0 and not result.timed_out:
        raise TaskError(
            f"Task {task.id}: its test command starts with {word!r}, which the sandbox {sandbox.id} does not have. "
            "Use an image (or a machine) that has it, or write the tests for a program that is there."
        )


def first_word(command: str) -> str | None:
    """The name of the program that a command starts with; None where it is a path or something of the shell."""
    words = shlex.shlex(command, posix=True, punctuation_chars=True)
    try:
        word = next((w for w in words if not ASSIGNMENT.match(w)), "")
    except ValueError:
        return None
    return word if NAME.fullmatch(word) and not word.startswith(("-", ".")) else None


def end_of_output(result: ExecResult) -> str:
    """The end of the output, where tests say what failed."""
    return result.output.strip()[-DETAIL_CHARS:]
