"""The reward `tests`: run the hidden test command where the agent worked.

1. Every process that the agent left is killed: nothing of it can watch or touch the scoring.
2. The test files are copied in, into a folder with an unguessable name that the tests' user owns.
3. The command runs in the work folder as the tests' user, with `$ALE_TESTS` naming that folder.

Exit code 0 passes; any other, and a time-out, is a failed test. A test that *cannot run* is an infrastructure fault:
a dead sandbox, files that cannot be written, or a command whose own first word does not exist in the sandbox
(checked before it runs, so that an agent cannot turn its failure into a fault by leaving something out).
"""

from __future__ import annotations

import secrets
import shlex

from pydantic import Field

from ale.errors import SandboxError, TaskError
from ale.specs.driver import PluginConfig
from ale.specs.reward import Reward
from ale.specs.sandbox import TESTS, Sandbox
from ale.task import Task
from ale.trajectory import Score, Trajectory

DETAIL_CHARS = 2000
CANNOT_RUN = 199
"""Exit code by which the wrapper says that the test's own command does not exist."""


class TestsReward(Reward):
    """See `Reward`."""

    __test__ = False  # the name is the plugin's, not a test's

    class Config(PluginConfig):
        """Settings of the reward `tests`."""

        pass_value: float = Field(1.0, description="Reward where the tests pass.")
        fail_value: float = Field(0.0, description="Reward where they do not.")

    config: Config

    async def score(self, task: Task, sandbox: Sandbox, trajectory: Trajectory) -> Score:
        """See `Reward.score`."""
        await sandbox.kill_agent_processes()
        folder = f"/tmp/ale-tests-{secrets.token_hex(16)}"
        if task.tests.files:
            await self._copy_in(task, sandbox, folder)
        result = await sandbox.exec(
            _command(task.tests.command), timeout_s=task.tests.timeout_s, user=TESTS,
            env={**task.env, "ALE_TESTS": folder}, max_output_bytes=DETAIL_CHARS * 8,
        )  # fmt: skip
        if task.tests.files:
            await sandbox.exec(f"rm -rf {folder}", user=TESTS)
        if result.exit_code == CANNOT_RUN:
            raise TaskError(f"The tests of '{task.id}' cannot run in this sandbox: {result.output.strip()}")
        passed = result.exit_code == 0 and not result.timed_out
        detail = "timed out" if result.timed_out else result.output[-DETAIL_CHARS:].strip()
        value = self.config.pass_value if passed else self.config.fail_value
        return Score(value, passed, detail, result.duration_s)

    async def _copy_in(self, task: Task, sandbox: Sandbox, folder: str) -> None:
        made = await sandbox.exec(f"umask 077 && mkdir {folder}", user=TESTS)
        if made.exit_code != 0:
            raise SandboxError(f"The tests of '{task.id}' could not be copied in: {made.output.strip()}")
        try:
            await sandbox.upload(
                {f"{folder}/{path}": text.encode() for path, text in task.tests.files.items()}, user=TESTS
            )
        except OSError as error:
            raise SandboxError(f"The tests of '{task.id}' could not be copied in: {error}.") from error


def _command(command: str) -> str:
    """The test command behind a check that its first word exists; a path is the agent's affair and not checked."""
    first = command.split(maxsplit=1)[0] if command.split() else ""
    if not first.replace("-", "").replace("_", "").replace(".", "").isalnum():
        return command
    word = shlex.quote(first)
    return f"command -v {word} >/dev/null 2>&1 || {{ echo {word} is not installed; exit {CANNOT_RUN}; }}\n{command}"
