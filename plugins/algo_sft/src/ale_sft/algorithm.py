"""Supervised fine-tuning on trajectories, with a mask for each turn (paper, 3.2.2).

Eq. 1: `L = - 1/(sum_k m_k |c_k| + eps) * sum_k m_k log pi(c_k | s_k)`; Eq. 2: `m_k = m_err * m_task`.
`k` runs over all turns (chunks) of all trajectories of the batch. If the sum is empty, where the paper needs eps, no
batch is made. `m_err` is 0 if the turn's tool call was malformed or its execution failed, as recorded with the chunk.
`m_task` is 0 if one of the configured rules (`rules.py`) finds that the turn teaches nothing about the task. Masked
turns stay in the context of later turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field, field_validator

from ale.specs.algorithm import Algorithm
from ale.specs.driver import Driver, PluginConfig
from ale.specs.trainer import Loss, LossInput, LossOutput, TrainBatch
from ale.trajectory import Chunk, Trajectory
from ale_sft.contexts import steps
from ale_sft.rules import RULES
from ale_train.batches import Credit, pack


@dataclass(frozen=True, slots=True)
class LikelihoodLoss(Loss):
    """Computes Eq. 1 over one micro-batch, in float32 or better."""

    def __call__(self, inputs: LossInput) -> LossOutput:
        import torch  # imported here, so that settings can be checked without torch

        from ale_torch.losses.policy_gradient import weighted_likelihood

        logprobs = inputs.logprobs.to(torch.promote_types(inputs.logprobs.dtype, torch.float32))
        sums = {
            "loss_tokens": logprobs.new_tensor(len(logprobs)),
            "entropy_sum": inputs.entropy.to(logprobs.dtype).sum(),
        }
        return LossOutput(weighted_likelihood(logprobs, torch.ones_like(logprobs)) / inputs.normalizer, sums)

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics: `loss` is in nats per token with loss; `entropy` is the policy's mean over them."""
        out = dict(totals)
        out["entropy"] = out.pop("entropy_sum", 0.0) / max(1.0, out.get("loss_tokens", 0.0))
        return out


class SFT(Driver, Algorithm):
    """The algorithm `sft`."""

    api_version = ">=1.0,<1.2"

    class Config(PluginConfig):
        """Settings of the algorithm `sft`."""

        mask_errors: bool = Field(
            True, description="m_err of Eq. 2: no loss on turns whose call was malformed or failed."
        )
        task_rules: tuple[str, ...] = Field(
            (),
            description=f"m_task of Eq. 2: rules that take the loss off turns; of {', '.join(RULES)}. The README "
            "defines each.",
        )

        @field_validator("task_rules")
        @classmethod
        def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
            for name in names:
                if name not in RULES:
                    raise ValueError(f"there is no rule '{name}'; the rules are {', '.join(RULES)}")
            return names

    config: Config
    old_logprobs = "none"
    loss = LikelihoodLoss()

    def masks(self, trajectory: Trajectory) -> tuple[frozenset[int], frozenset[int]]:
        """Return the positions in `Trajectory.chunks` of turns with `m_err = 0`, and of turns with `m_task = 0`."""
        turns = steps(trajectory)
        errors = frozenset(i for i, chunk in turns if self.config.mask_errors and chunk.error is not None)
        return errors, frozenset().union(*(RULES[name](trajectory) for name in self.config.task_rules))

    def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch | None:
        """Pack the turns, also those that the policy did not sample, as in demonstrations.

        Metrics: `masked_error` and `masked_task` are the shares of turns with `m_err = 0` and `m_task = 0`."""
        masked: set[int] = set()
        found: Counter[str] = Counter()
        for trajectory in trajectories:
            errors, task = self.masks(trajectory)
            found += Counter(turns=len(steps(trajectory)), masked_error=len(errors), masked_task=len(task))
            # Keys are objects, because two trajectories may share an id.
            masked.update(id(trajectory.chunks[i]) for i in errors | task)

        def credit(trajectory: Trajectory, chunk: Chunk, position: int, count: int) -> Credit | None:
            return None if id(chunk) in masked else Credit(1.0, True)

        shares = {name: found[name] / max(1, found["turns"]) for name in ("masked_error", "masked_task")}
        return pack(trajectories, credit, metrics=shares)
