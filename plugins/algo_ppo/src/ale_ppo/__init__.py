"""PPO with a critic: a value head beside the policy, advantages of tokens by generalized advantage estimation."""

from ale_ppo.algorithm import PPO

__all__ = ["PPO"]
