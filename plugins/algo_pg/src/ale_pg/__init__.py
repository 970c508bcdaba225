"""Policy gradients without a critic: REINFORCE, TIS, TOPR, GRPO, Dr. GRPO, DAPO, GSPO, RLOO, PPO-clip and CISPO."""

from ale_pg.algorithm import PolicyGradient

__all__ = ["PolicyGradient"]
