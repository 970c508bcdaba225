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
4. Tests with `artifacts` run in a sandbox apart, to which these are copied: nothing else of the agent's is there.
5. Tests with a `reward_file` write the reward themselves. If they wrote none that can be read, nobody can know the
   reward: a `TaskError`.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import shlex
import tempfile
import time
from pathlib import Path, PurePosixPath
from typing import ClassVar, Literal

from pydantic import Field

from ale.errors import SandboxError, TaskError
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.reward import GradedSandbox, Reward
from ale.specs.sandbox import TESTS, ExecResult, Sandbox
from ale.specs.sandbox_protocols import Trees
from ale.task import Task, TaskTests, as_bytes
from ale.trajectory import Score, Trajectory

DETAIL_CHARS = 2000
CANNOT_RUN = (126, 127)
KILLED = 128
"""A larger exit code means that a signal killed the shell, which an agent's code can do."""
FOLDER = "${TMPDIR:-/tmp}"
OCTAL_BYTES = 4096
NO_ROOM = "'The tests could not be put in place: the agent left no room or no right to write them.'"
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
NAME = re.compile(r"[A-Za-z0-9_.+-]+")


class TestsRewardConfig(PluginConfig):
    """Settings of the tests reward."""

    __test__ = False
    pass_value: float = Field(1.0, description="Reward if the tests pass.")
    fail_value: float = Field(0.0, description="Reward if the tests fail or run out of time.")
    pass_at: float = Field(1.0, description="With a reward file: the least reward that counts as a pass.")
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

    async def score(self, task: Task, sandbox: GradedSandbox, trajectory: Trajectory) -> Score:
        tests, started = task.tests, time.monotonic()
        if tests is None:
            raise TaskError(
                f"Task {task.id} has no tests; use a reward that judges it in another way, such as `python`."
            )
        await sandbox.kill_agent_processes()
        if tests.artifacts is None:
            return await self.run_tests(task, tests, sandbox, started)
        async with sandbox.open_another() as apart:
            for path in tests.artifacts:
                refused = await copy_artifact(path, sandbox, apart)
                if refused is not None:
                    return self.make_score(False, f"The artifact {path} cannot be copied: {refused}", started)
            return await self.run_tests(task, tests, apart, started)

    async def run_tests(self, task: Task, tests: TaskTests, sandbox: Sandbox, started: float) -> Score:
        """Run the tests in a sandbox; the score has the seconds since `started`, as of the monotonic clock."""
        name = f"ale-tests-{secrets.token_hex(16)}"
        script = test_script(task, tests, name)
        env = {"PYTHONNOUSERSITE": "1", **task.env}
        result = await sandbox.exec('eval "$(cat)"', stdin=script, timeout_s=tests.timeout_s, env=env, user=TESTS)
        written = b""
        if tests.reward_file is not None and not result.timed_out:
            read = f"cat {FOLDER}/{name}/tests/{shlex.quote(tests.reward_file)}"
            written = (await sandbox.exec(read, timeout_s=10, cwd="/", user=TESTS, max_output_bytes=1 << 16)).stdout
        if result.timed_out or result.exit_code > KILLED or tests.reward_file is not None:
            await self.remove_test_files(sandbox, name)  # the script did not do it
        if result.timed_out:
            limit = f"The tests did not end within {tests.timeout_s:g} s.\n"
            if self.config.timed_out == "no_reward":
                raise TaskError(f"Task {task.id}: {limit}{end_of_output(result)}")
            return self.make_score(False, limit + end_of_output(result), started)
        if result.exit_code in CANNOT_RUN:
            await refuse_missing_program(task, tests, sandbox)
        if tests.reward_file is None:
            return self.make_score(result.exit_code == 0, end_of_output(result), started)
        parts = read_reward(task, tests.reward_file, written, end_of_output(result))
        value = parts.get("reward", sum(parts.values()) / len(parts))
        return Score(
            value, value >= self.config.pass_at, end_of_output(result), time.monotonic() - started, parts=parts
        )

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


async def copy_artifact(path: str, source: Sandbox, target: Sandbox) -> str | None:
    """Copy a file or folder from one sandbox into the same place of another one; what the agent did not make is left
    out. Returns why it cannot be copied if that is the agent's doing (a link out of the folder, a device)."""
    try:
        if isinstance(source, Trees) and isinstance(target, Trees):
            with tempfile.TemporaryDirectory(prefix="ale-artifact-") as folder:
                copy = Path(folder) / "copy"
                await source.download_tree(path, copy)
                await target.upload_tree(copy, path)
        else:
            await target.upload({path: await source.download(path)})
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # a folder where only files can be copied, a file that is too large
        return str(error)
    except SandboxError as error:
        await source.exec("true", timeout_s=10)  # it raises if the sandbox is lost, which nobody may be blamed for
        await target.exec("true", timeout_s=10)
        return str(error)
    return None


def read_reward(task: Task, name: str, written: bytes, output: str) -> dict[str, float]:
    """Return the numbers of a reward file by name; a single number is the `reward`. Raises `TaskError`."""
    try:
        found = json.loads(written)
        numbers = {"reward": found} if isinstance(found, (int, float)) else found
        parts = {str(key): float(value) for key, value in numbers.items()}
        if parts and all(map(math.isfinite, parts.values())):
            return parts
    except (ValueError, TypeError, AttributeError):
        pass
    raise TaskError(
        f"Task {task.id}: its tests must write a number, or a JSON object of numbers, to $ALE_TESTS/{name}; they wrote "
        f"{written[:80]!r}. Their output ends with: {output[-500:]}"
    )


def test_script(task: Task, tests: TaskTests, name: str) -> bytes:
    """The script: make the folder, write the files, run the command away from the script's input, clean up."""
    folders, writes = {"."}, []
    for file, content in tests.files.items():
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in file:
            raise TaskError(
                f"Task {task.id}: the test file {file!r} must be at a relative path that stays in the tests' folder."
            )
        folders.add(str(path.parent))
        writes.append(f'{{ {print_command(content)}; }} > "$ALE_TESTS"/{shlex.quote(str(path))}')
    places = " ".join(f'"$ALE_TESTS"/{shlex.quote(folder)}' for folder in sorted(folders))
    steps = [f"mkdir -p {places}", ': > "$ale_place"/pytest.ini', *writes, 'chmod -R u+x "$ALE_TESTS"']
    remove = "" if tests.reward_file else ' rm -rf "$ale_place";'
    lines = (
        f'ale_place="{FOLDER}/{name}"; export ALE_TESTS="$ale_place"/tests',
        "ale_umask=$(umask); umask 077",
        f'{{ {" && ".join(steps)}; }} || {{ echo {NO_ROOM}; rm -rf "$ale_place"; exit 1; }}',
        'umask "$ale_umask"',
        f"(unset ale_umask ale_place; eval {shlex.quote(tests.command)}) </dev/null",
        f"ale_code=$?;{remove} exit $ale_code",
    )
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def print_command(content: str | bytes) -> str:
    """The shell's words that print a file's content; bytes that no word can hold are written as octal numbers."""
    if isinstance(content, str) and "\0" not in content:
        return f"printf %s {shlex.quote(content)}"
    data = as_bytes(content)
    pieces = (data[at : at + OCTAL_BYTES] for at in range(0, len(data), OCTAL_BYTES))
    return " && ".join(f"printf '{''.join(f'{chr(92)}{byte:03o}' for byte in piece)}'" for piece in pieces) or ":"


async def refuse_missing_program(task: Task, tests: TaskTests, sandbox: Sandbox) -> None:
    """Raise where the program that the test command starts with does not exist in the sandbox."""
    word = first_word(tests.command)
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
