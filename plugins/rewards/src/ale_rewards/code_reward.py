"""The reward `code`: the program in the reply is run in the sandbox against the task's cases.

1. The agent's processes are ended. The program is written into a fresh folder with an unguessable name, as the user
   `tests`; each case runs in a process of its own, within a time limit. Nothing runs outside the sandbox.
2. A case of Python code is put after the program, and after it a line that prints a random word: a program that leaves
   early does not pass. Expected outputs never reach the sandbox.
3. A reply without a program scores 0; so does one whose program is too slow. A sandbox without the interpreter is an
   error of the task, a lost sandbox one of the sandbox.
"""

from __future__ import annotations

import secrets
import shlex
import time

from pydantic import Field

from ale.errors import SandboxError, TaskError
from ale.messages import whole_characters
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.reward import GradedSandbox, Reward
from ale.specs.sandbox import TESTS, ExecResult, Sandbox
from ale.task import Task
from ale.trajectory import Score, Trajectory
from ale_rewards.code_cases import Case, last_program, read_cases, same_output
from ale_rewards.conversation import read_conversation
from ale_rewards.task_column import Column

DETAIL_CHARS = 1000
CANNOT_RUN = (126, 127)


class CodeReward(Driver, Reward):
    """The reply's program, run in the sandbox against the task's cases."""

    api_version = ">=1.0,<1.2"

    class Config(PluginConfig):
        """Settings of the reward `code`."""

        cases: str = Field(
            "tests",
            description="Column with the cases: Python code that follows the program, a list of it, a list of "
            "{input, output}, or an object {inputs, outputs}; also as JSON in a text.",
        )
        interpreter: str = Field("python3", min_length=1, description="Command that runs the program's file.")
        timeout_s: float = Field(10.0, gt=0, description="Seconds of one case.")
        partial: bool = Field(False, description="Whether the value is the share of passed cases, instead of 0 or 1.")

    config: Config

    def __init__(self, config: Config, context: DriverContext) -> None:
        super().__init__(config, context)
        self._cases = Column("reward.cases", config.cases)

    @classmethod
    def objection(cls, config: Config, task: Task) -> str:
        """Return whether the task lacks the column."""
        return Column("reward.cases", config.cases).objection(task)

    async def score(self, task: Task, sandbox: GradedSandbox, trajectory: Trajectory) -> Score:
        started = time.monotonic()
        try:
            cases = read_cases(self._cases.read(task))
        except ValueError as error:
            raise TaskError(f"Task {task.id}: its column '{self.config.cases}' holds no cases: {error}.") from None
        program = last_program(read_conversation(task, trajectory).reply)
        if program is None:
            return Score(0.0, False, "The reply has no fenced code block.", time.monotonic() - started)
        await sandbox.kill_agent_processes()
        folder = f'"${{TMPDIR:-/tmp}}"/ale-code-{secrets.token_hex(16)}'
        passed, detail = 0, ""
        try:
            for number, case in enumerate(cases, 1):
                complaint = await self._run_case(task, sandbox, folder, program, case)
                passed += not complaint
                if complaint:
                    detail = detail or f"Case {number} of {len(cases)}: {complaint}"
                    if not self.config.partial:
                        break
        finally:
            await remove_folder(sandbox, folder)
        solved = passed == len(cases)
        value = passed / len(cases) if self.config.partial else float(solved)
        return Score(value, solved, detail or f"{passed} of {len(cases)} cases passed.", time.monotonic() - started)

    async def _run_case(self, task: Task, sandbox: Sandbox, folder: str, program: str, case: Case) -> str:
        """Run one case; return why it failed, or an empty text."""
        word = secrets.token_hex(16)
        text = program if case.after is None else f"{program}\n{case.after}\nprint()\nprint('{word}')\n"
        command = f"umask 077; mkdir -p {folder} && cat > {folder}/program"
        data = whole_characters(text).encode()
        if (await sandbox.exec(command, timeout_s=30, stdin=data, cwd="/", user=TESTS)).exit_code != 0:
            return "the program could not be put in place: the agent left no room or no right to write it."
        # The interpreter may be several words, such as `python3 -P`; it is the run's, not the agent's.
        command = f"cd {folder} && {self.config.interpreter} program"
        given = whole_characters(case.given).encode()
        result = await sandbox.exec(
            command, timeout_s=self.config.timeout_s, stdin=given, env=task.env, cwd="/", user=TESTS
        )
        if result.timed_out:
            return f"the program did not end within {self.config.timeout_s:g} s."
        if result.exit_code in CANNOT_RUN:
            await self._refuse_missing_interpreter(task, sandbox)
        printed = result.stdout.decode("utf-8", "replace")
        if result.exit_code != 0:
            return f"the program ended with exit code {result.exit_code}: {end_of(result)}"
        if case.after is not None:
            return "" if printed.strip().endswith(word) else "the program ended before its test."
        return "" if same_output(printed, case.expected) else f"it printed {printed.strip()[:DETAIL_CHARS]!r}."

    async def _refuse_missing_interpreter(self, task: Task, sandbox: Sandbox) -> None:
        name = shlex.quote(self.config.interpreter.split()[0])
        found = await sandbox.exec(f"command -v {name}", timeout_s=10, env=task.env, cwd="/", user=TESTS)
        if found.exit_code != 0 and not found.timed_out:
            raise TaskError(
                f"Task {task.id}: the sandbox {sandbox.id} has no {name} to run the program; use an image that has it, "
                "or set reward.interpreter."
            )


async def remove_folder(sandbox: Sandbox, folder: str) -> None:
    """Remove the program. The score is the same where this fails."""
    try:
        await sandbox.exec(f"rm -rf {folder}", timeout_s=10, cwd="/", user=TESTS)
    except SandboxError:
        return


def end_of(result: ExecResult) -> str:
    """Return the end of the output, where a program says what went wrong."""
    return result.output.strip()[-DETAIL_CHARS:]
