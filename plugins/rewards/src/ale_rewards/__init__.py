"""Rewards that judge what an agent said: functions in Python, exact and mathematical answers, code, a judge, steps."""

from ale_rewards.python_reward import PythonReward
from ale_rewards.steps_reward import StepsReward

__all__ = ["PythonReward", "StepsReward"]
