"""The reward contract: judges what an agent left behind. Hidden tests reach the sandbox only now.

A reward that runs the task's tests does, in this order:

1. `sandbox.kill_agent_processes()`: nobody of the agent's may watch, or change what is tested meanwhile.
2. Put `task.tests.files` into a folder that the agent cannot guess, as the user `ale.specs.sandbox.TESTS`, whose files the
   agent cannot read where the sandbox has the capability `users`.
3. `sandbox.exec(task.tests.command, user=TESTS, timeout_s=task.tests.timeout_s, env=...)` in the work folder, with
   `ALE_TESTS` naming that folder, beside `task.env`. Exit code 0 is solved; any other, and a time-out, is not.
4. Take the folder away, also where the tests failed or ran out of time.

`ale plugins new reward NAME` writes one that does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ale.specs.driver import Driver
from ale.specs.sandbox import Sandbox
from ale.task import Task
from ale.trajectory import Score, Trajectory


class Reward(Driver, ABC):
    """Scores one finished episode."""

    @abstractmethod
    async def score(self, task: Task, sandbox: Sandbox, trajectory: Trajectory) -> Score:
        """Judge. A test that *cannot run* is never a zero: a sandbox that is gone raises `SandboxError`, tests that nobody
        could pass raise `TaskError`. Such is a test command that starts with a program which the sandbox does not have
        (exit code 127, and `command -v` does not find it). A 127 for any other reason, such as a script of the agent's
        that was never written, is the agent's failure.

        Any other exception is a crash: the rollout is recorded as a failure of the plugin, and not trained on.
        """
