"""Supervised fine-tuning on trajectories, turn by turn (paper, 3.2.2).

Eq. 1: `L = - 1/(sum_k m_k |c_k| + eps) * sum_k m_k log pi(c_k | s_k)`; Eq. 2: `m_k = m_err * m_task`.
A turn is a chunk, and `k` runs over all turns of all trajectories of the batch. `m_err = 0` where the turn's tool call
was malformed or its execution failed, as recorded with the chunk; `m_task = 0` where one of the configured rules
(`rules.py`) says that the turn teaches nothing of the task. Masked turns stay in the context of the later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator

from ale.packing import Credit, pack
from ale.specs.algorithm import Algorithm
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.trainer import LossInput, LossOutput, TrainBatch
from ale.trajectory import Chunk, Trajectory
from ale_sft.contexts import steps
from ale_sft.rules import RULES

EPSILON = 1e-8
"""eps of Eq. 1."""


class SFT(Algorithm):
    """The algorithm `sft`."""

    api_version = ">=1.1,<1.3"

    class Config(PluginConfig):
        """Settings of the algorithm `sft`."""

        mask_errors: bool = Field(
            True, description="m_err of Eq. 2: no loss on turns whose call was malformed or failed."
        )
        task_rules: tuple[str, ...] = Field(
            (),
            description=f"m_task of Eq. 2: rules that take the loss off turns; of {', '.join(RULES)}. The README defines each.",
        )

        @field_validator("task_rules")
        @classmethod
        def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
            for name in names:
                if name not in RULES:
                    raise ValueError(f"there is no rule '{name}'; the rules are {', '.join(RULES)}")
            return names

    config: Config
    old_logprobs = "none"

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self._turns: Counter[str] = Counter()

    def masks(self, trajectory: Trajectory) -> tuple[frozenset[int], frozenset[int]]:
        """Positions in `Trajectory.chunks` of the turns with `m_err = 0`, and of those with `m_task = 0`."""
        turns = steps(trajectory)
        errors = frozenset(i for i, chunk in turns if self.config.mask_errors and chunk.error is not None)
        return errors, frozenset().union(*(RULES[name](trajectory) for name in self.config.task_rules))

    def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch | None:
        """See `Algorithm.batch`; turns count whether or not the policy sampled them: demonstrations are not its own."""
        masked: set[int] = set()
        for trajectory in trajectories:
            errors, task = self.masks(trajectory)
            self._turns += Counter(turns=len(steps(trajectory)), masked_error=len(errors), masked_task=len(task))
            # By object: two trajectories may share an id.
            masked.update(id(trajectory.chunks[i]) for i in errors | task)

        def credit(trajectory: Trajectory, chunk: Chunk, position: int, count: int) -> Credit | None:
            return None if id(chunk) in masked else Credit(1.0, True)

        return pack(trajectories, credit, lambda table, tokens: tokens + EPSILON)

    def loss(self, inputs: LossInput) -> LossOutput:
        """Eq. 1 over one micro-batch, in float32 or better."""
        import torch  # here, so that settings are checked without it

        from ale_policy_loss.likelihood import weighted_likelihood

        logprobs = inputs.logprobs.to(torch.promote_types(inputs.logprobs.dtype, torch.float32))
        sums = {
            "loss_tokens": logprobs.new_tensor(len(logprobs)),
            "entropy_sum": inputs.entropy.to(logprobs.dtype).sum(),
        }
        return LossOutput(weighted_likelihood(logprobs, torch.ones_like(logprobs)) / inputs.normalizer, sums)

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """`loss` is nats a token with loss; `entropy` the policy's mean entropy there. `masked_error` and `masked_task` are the
        shares of turns with `m_err = 0` and `m_task = 0`, in all batches made since this was last asked."""
        out = dict(totals)
        out["entropy"] = out.pop("entropy_sum", 0.0) / max(1.0, out.get("loss_tokens", 0.0))
        turns, self._turns = self._turns, Counter()
        for name in ("masked_error", "masked_task"):
            out[name] = turns[name] / max(1, turns["turns"])
        return out
