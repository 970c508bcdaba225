"""The reward `tests`: 1 if the task's hidden test command passes in the agent's sandbox, else 0."""

from ale_tests.reward import TestsReward, TestsRewardConfig

__all__ = ["TestsReward", "TestsRewardConfig"]
