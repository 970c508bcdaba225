"""The reward contract: a reward judges what an agent said and left behind. Hidden tests reach the sandbox only here.

A reward that runs the task's tests does the following, in this order:

1. `sandbox.kill_agent_processes()`, so that no process of the agent can watch or change what is tested.
2. Put `task.tests.files` into a folder that the agent cannot guess, as the user `ale.specs.sandbox.TESTS`; the agent
   cannot read that user's files if the sandbox has the capability `users`.
3. `sandbox.exec(task.tests.command, user=TESTS, timeout_s=task.tests.timeout_s, env=...)` in the work folder, with
   `ALE_TESTS` naming that folder, beside `task.env`. Exit code 0 is a pass; any other, and a time-out, is a failure.
4. Remove the folder, also if the tests failed or ran out of time.

`ale plugins new reward NAME` writes one that does this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import Any

from ale.specs.sandbox import Sandbox
from ale.task import Task
from ale.trajectory import Score, Trajectory


class GradedSandbox(Sandbox):
    """The sandbox as a reward gets it. A reward may declare its parameter as a `Sandbox` if that is all it needs."""

    @abstractmethod
    def open_another(self) -> AbstractAsyncContextManager[Sandbox]:
        """Start a sandbox apart, as the task's was before the agent began, for grading where nothing is that the agent
        made or changed; the block ends it. What the agent made is copied with `download` and `upload`."""


class Reward(ABC):
    """It scores one finished episode."""

    @classmethod
    def uses_sandbox(cls, config: Any) -> bool:
        """Return whether it uses the sandbox with these settings; see `Scaffold.uses_sandbox`."""
        return True

    @classmethod
    def objection(cls, config: Any, task: Task) -> str:
        """Return as a sentence what the task lacks that the reward reads of it, such as a column; empty if nothing. A
        run is refused before it starts if every task of a split that was looked at lacks something."""
        return ""

    @abstractmethod
    async def score(self, task: Task, sandbox: GradedSandbox, trajectory: Trajectory) -> Score:
        """Judge the episode. A test that *cannot run* is never a zero: a lost sandbox raises `SandboxError`, and tests
        that nobody could pass raise `TaskError`. Tests are of the second sort if their command starts with a program
        that the sandbox does not have (exit code 127, and `command -v` does not find it). A 127 for any other reason,
        such as a script that the agent never wrote, is the agent's failure.

        Any other exception is a crash: the rollout is recorded as a failure of the plugin and is not trained on.
        """
