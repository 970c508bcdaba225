"""The reward contract: judges what an agent left behind. Hidden tests reach the sandbox only now."""

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
        """Judge. A test that *cannot run* raises `SandboxError` or `TaskError`: it is never a zero."""
