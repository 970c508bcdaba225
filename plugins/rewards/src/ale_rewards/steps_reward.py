"""The reward `steps`: the sum of the rewards that the environment gave for single steps."""

from __future__ import annotations

import math

from pydantic import Field

from ale.specs.driver import Driver, PluginConfig
from ale.specs.reward import GradedSandbox, Reward
from ale.task import Task
from ale.trajectory import Score, Trajectory
from ale_rewards.returned_scores import reaches


class StepsReward(Driver, Reward):
    """The sum of the rewards that the environment gave for single steps."""

    api_version = ">=1.0,<1.2"

    class Config(PluginConfig):
        """Settings of the reward `steps`."""

        pass_at: float = Field(1.0, allow_inf_nan=False, description="Smallest sum that counts as success.")

    config: Config

    @classmethod
    def uses_sandbox(cls, config: Config) -> bool:
        """It reads the trajectory alone."""
        return False

    async def score(self, task: Task, sandbox: GradedSandbox, trajectory: Trajectory) -> Score:
        """Each step's reward goes to the chunk that made the step."""
        by_chunk = [
            math.fsum(o.reward for o in trajectory.observations if o.chunk == chunk.index and o.reward is not None)
            for chunk in trajectory.chunks
        ]
        value = math.fsum(by_chunk)
        given = sum(o.reward is not None for o in trajectory.observations)
        detail = f"{given} steps had a reward." if given else "No step of this episode had a reward."
        return Score(value, reaches(value, self.config.pass_at), detail, by_chunk=tuple(by_chunk))
