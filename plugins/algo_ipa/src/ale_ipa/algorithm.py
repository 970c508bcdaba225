"""IPA: policy optimization at the level of interaction chunks (paper, 3.2.4).

1. `batch` turns rewards into signals and signals into discounted chunk returns (Eq. 7); only chunks that the policy
   sampled carry loss. A chunk that is an error turn is data like any other.
2. `loss` weighs each chunk's log-likelihood with its return: weight 1 on successful trajectories, the truncated
   chunk ratio (Eq. 8) on failed ones, and drops chunks on which engine and trainer disagree (Eq. 9).
3. `level` moves return, ratio and mask together to another granularity; each can be set alone, so that the
   paper's baselines are settings: Eq. 6 is `{return_level: trajectory, ratio_level: trajectory, mask_level: token}`.
4. Where tasks have experts, `plan` starts rollouts on their paths (`curriculum.py`), and the chunks of an expert up to a
   start that the policy does not master are imitated (Eq. 10, `hybrid.py`).

torch is imported with `loss.py` and `report.py`, by the methods that use them: settings are checked without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from ale.errors import PluginError
from ale.packing import Credit, pack
from ale.specs.algorithm import Algorithm, RolloutHistory, RolloutRequest
from ale.specs.driver import DriverContext
from ale.specs.trainer import ChunkTable, LossInput, LossOutput, TrainBatch
from ale.task import Task
from ale.trajectory import Chunk, Trajectory
from ale_ipa.curriculum import Curriculum
from ale_ipa.hybrid import imitation_loss, imitations, select
from ale_ipa.settings import StartSettings
from ale_ipa.signals import ReturnSignal, chunk_return, signals
from ale_policy_loss import Level


class IPA(Algorithm):
    """The algorithm `ipa`."""

    api_version = ">=1.1,<1.3"

    class Config(StartSettings):
        """Settings of the algorithm `ipa`."""

        gamma: float = Field(0.95, gt=0, le=1, description="Discount a chunk (Eq. 7).")
        mismatch_threshold: float = Field(
            2.0, gt=0, description="H: what has a larger trainer/engine ratio is masked (Eq. 9)."
        )
        mismatch_lower: float | None = Field(
            None, gt=0, description="Mask what has a smaller ratio too; null: do not, as in the paper."
        )
        return_signal: ReturnSignal = Field(
            "signed",
            description="R: signed (1 for a pass, negative_signal for a failure), raw (the reward) or "
            "group_centered (the reward minus its group's mean; groups without spread are dropped).",
        )
        negative_signal: float = Field(
            -0.05,
            le=0,
            description="R of a failed trajectory. -1 is TOPR's; small policies collapse from about -0.3 on.",
        )
        normalization: Literal["token", "chunk", "trajectory"] = Field(
            "token", description="What Z counts over the whole batch, of what carries loss."
        )
        level: Level = Field("chunk", description="Granularity of return, ratio and mask together.")
        return_level: Level | None = Field(
            None, description="Granularity of the return alone: chunk discounts by gamma, the others do not."
        )
        ratio_level: Level | None = Field(None, description="Granularity of the importance ratio alone (Eqs. 4, 8).")
        mask_level: Level | None = Field(None, description="Granularity of the mismatch mask alone (Eqs. 6, 9).")
        old_logprobs: Literal["recompute", "engine"] = Field(
            "recompute",
            description="Where pi_old comes from: recomputed by the trainer with the weights that sampled, or the "
            "engine's own numbers (cheaper; nothing is masked then).",
        )
        group_size: int = Field(8, gt=0, description="Rollouts of each task in a step.")
        kl_coef: float = Field(
            0.0,
            ge=0,
            description="Weight of KL(pi || the policy that RL began with) in the loss; 0: none, and no second policy is kept.",
        )

        @model_validator(mode="after")
        def _no_idle_settings(self) -> IPA.Config:
            given = self.model_fields_set
            if "negative_signal" in given and self.return_signal != "signed":
                raise ValueError(
                    f"negative_signal does nothing with return_signal '{self.return_signal}'; leave it out"
                )
            return_level = self.return_level or self.level
            if "gamma" in given and self.gamma != 1 and return_level != "chunk":
                raise ValueError(
                    f"gamma discounts chunk by chunk and does nothing with returns at the level '{return_level}'; "
                    "leave it out or set it to 1"
                )
            masking = given & {"mismatch_threshold", "mismatch_lower", "mask_level"}
            if self.old_logprobs == "engine" and masking:
                raise ValueError(
                    f"{', '.join(sorted(masking))} compares the trainer with the engine and does nothing with "
                    "old_logprobs 'engine'; leave it out or set old_logprobs to 'recompute'"
                )
            if self.mismatch_lower is not None and self.mismatch_lower >= self.mismatch_threshold:
                raise ValueError(
                    f"mismatch_lower ({self.mismatch_lower}) must be below mismatch_threshold "
                    f"({self.mismatch_threshold}), or everything is masked"
                )
            if "level" in given and self.return_level and self.ratio_level and self.mask_level:
                raise ValueError(
                    "level does nothing where return_level, ratio_level and mask_level are set; leave it out"
                )
            if self.return_signal == "group_centered" and self.group_size < 2:
                raise ValueError("return_signal 'group_centered' needs a group_size of at least 2")
            return self

        @model_validator(mode="after")
        def _starts_fit_into_a_group(self) -> IPA.Config:
            if self.start == "parallel" and self.expert_settings and self.most_starts < 2:
                raise ValueError(
                    f"start 'parallel' needs a group_size of at least {self.rollouts_a_start * 2}: rollouts of two starts"
                )
            if "anchors" in self.model_fields_set and self.anchors > self.most_starts:
                raise ValueError(
                    f"a group_size of {self.group_size} has rollouts for {self.most_starts} start chunks, not for "
                    f"{self.anchors}; raise group_size to {self.anchors * self.rollouts_a_start} or lower anchors"
                )
            return self

        @property
        def rollouts_a_start(self) -> int:
            """How many rollouts of a start make a group that teaches something."""
            return 2 if self.return_signal == "group_centered" else 1

        @property
        def most_starts(self) -> int:
            """How many start chunks the rollouts of a task can be spread over."""
            return max(1, self.group_size // self.rollouts_a_start)

    config: Config

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self.group_size = config.group_size
        self.old_logprobs = config.old_logprobs
        self.reference = config.kl_coef > 0
        self._dropped_groups = 0
        self._curriculum = Curriculum(config, config.most_starts, context.event)

    @classmethod
    def wants_experts(cls, config: Any) -> Literal["no", "welcome", "needed"]:
        """See `Algorithm.wants_experts`: whoever sets what experts are for needs them."""
        if config.start == "beginning" or (config.start == "parallel" and config.most_starts < 2):
            return "no"
        return "needed" if config.expert_settings else "welcome"

    def plan(self, tasks: Sequence[Task], history: RolloutHistory) -> list[RolloutRequest]:
        """See `Algorithm.plan`. In a run that knows experts, a task's rollouts may start on its expert's path."""
        requests = super().plan(tasks, history)
        return requests if self.wants_experts(self.config) == "no" else self._curriculum.place(requests, history)

    @classmethod
    def needs(cls, config: Any) -> Mapping[str, Collection[str]]:
        """A trainer that keeps a reference policy, where there is a penalty on leaving it."""
        return {"trainer": ["reference"]} if config.kl_coef else {}

    def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch | None:
        """See `Algorithm.batch`. Left out: trajectories without a reward to be trusted, groups without spread.

        Behind the rollouts stand the experts whose chunks are imitated beside them, once for each of their groups.
        """
        c = self.config
        made = signals(c.return_signal, trajectories, c.negative_signal)
        self._dropped_groups += made.dropped_groups
        imitated = imitations(trajectories, self._curriculum.placed, c.il_when) if c.lambda_il else []
        if not any(made.values) and not imitated:
            return None
        # By object, not by trajectory id: two rollouts that share an id are still two.
        signal_of = {id(t): value for t, value in zip(made.trajectories, made.values, strict=True)}
        chunks_of = {id(i.expert): i.chunks for i in imitated}
        gamma = c.gamma if (c.return_level or c.level) == "chunk" else 1.0

        def credit(trajectory: Trajectory, chunk: Chunk, position: int, count: int) -> Credit | None:
            if id(trajectory) in chunks_of:
                part = position < chunks_of[id(trajectory)]
                return Credit(chunk_return(1.0, gamma, position, count), True) if part else None
            if not chunk.sampled:
                return None
            signal = signal_of[id(trajectory)]
            return Credit(chunk_return(signal, gamma, position, count), signal > 0)

        return pack([*made.trajectories, *(i.expert for i in imitated)], credit, self._normalizer)

    def _normalizer(self, table: ChunkTable, tokens: int) -> float:
        """Z, which counts what is imitated as it counts what was sampled.

        Known before anything is computed, so that it is one number for all micro-batches.
        """
        match self.config.normalization:
            case "token":
                return float(tokens)
            case "chunk":
                return float(len(table.trajectory))
            case "trajectory":
                return float(len(np.unique(table.trajectory)))

    def loss(self, inputs: LossInput) -> LossOutput:
        """Eq. 9 over one micro-batch, or Eq. 10 where it holds imitated chunks; and the pull to the reference."""
        from ale_policy_loss.reference import reference_penalty

        c = self.config
        sampled = inputs.chunks.sampled[inputs.chunk_ids]
        penalty = reference_penalty(inputs, c.kl_coef)
        total, sums = penalty.loss, penalty.sums
        maxima: Mapping[str, Any] = {}
        if bool(sampled.any()):
            out = self._policy_loss(inputs if bool(sampled.all()) else select(inputs, sampled))
            total, sums, maxima = total + c.lambda_rl * out.loss, {**sums, **out.sums}, out.maxima
        if not bool(sampled.all()):
            imitated, told = imitation_loss(select(inputs, ~sampled))
            total, sums = total + c.lambda_il * imitated, {**sums, **told}
        return LossOutput(total, sums, maxima)

    def _policy_loss(self, inputs: LossInput) -> LossOutput:
        """Eq. 9 over tokens that the policy sampled."""
        import torch

        from ale_ipa.loss import policy_loss
        from ale_ipa.report import loss_sums
        from ale_policy_loss.report import ratio_maxima
        from ale_policy_loss.units import segments_of

        c = self.config
        ids = inputs.chunk_ids
        old = inputs.old_logprobs
        if old is None:
            # Taking the engine's here in silence would turn the mismatch mask off.
            if c.old_logprobs == "recompute":
                raise PluginError(
                    "The algorithm 'ipa' has old_logprobs 'recompute', but the batch has none: fill "
                    "TrainBatch.old_logprobs from the trainer before the first update, or set old_logprobs to 'engine'."
                )
            old = inputs.engine_logprobs
        positive = inputs.chunks.positive[ids]
        terms = policy_loss(
            inputs.logprobs,
            old,
            inputs.engine_logprobs,
            inputs.chunks.returns[ids],
            positive,
            segments_of(c.ratio_level or c.level, ids, inputs.chunks),
            segments_of(c.mask_level or c.level, ids, inputs.chunks),
            c.mismatch_threshold,
            c.mismatch_lower,
            inputs.normalizer,
        )
        sums = loss_sums(inputs, torch.as_tensor(old), positive, terms)
        return LossOutput(terms.loss, sums, ratio_maxima(terms.ratio))

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Means over the tokens with loss, unless it says otherwise; `docs/metrics.md` has them in one table.

        `entropy` in nats; `ratio`, `ratio_std`, `ratio_max` of pi/pi_old in its unit before the step; `effective_samples`:
        (sum of ratios)^2 / (tokens x sum of squares), 1 where all are alike; `kl_old` an estimate of KL(pi_old, pi),
        `kl_ref` of KL(pi, reference) on what the policy sampled; `engine_gap` the mean of |log pi_old - log mu|. Shares:
        `positive` and `negative` of the tokens, `positive_trajectories` and `negative_trajectories` of the trajectories,
        `masked` of the tokens, `masked_chunks` of the chunks (in part or whole), `clipped` of the negative tokens (ratio
        above 1). `dropped_groups` counts those of all batches made since this was last asked, where there were any. All this is of what the
        policy sampled. Where experts are known: `il_tokens` that were imitated, `il_loss` their mean negative log-likelihood
        (nats), `experts` the tasks that have one, `start_chunk_pointer` the chunks replayed, mean over the tasks' pointers.
        """
        from ale_ipa.report import loss_metrics

        out = loss_metrics(totals)
        if self._dropped_groups:
            out["dropped_groups"] = float(self._dropped_groups)
            self._dropped_groups = 0
        return out | self._curriculum.metrics()
