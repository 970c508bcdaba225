"""IPA optimizes the policy at the level of interaction chunks (paper, 3.2.4).

1. `batch` turns rewards into signals and signals into discounted chunk returns (Eq. 7). Only chunks that the policy
   sampled carry loss. A chunk whose tool call was malformed or failed is treated like any other chunk.
2. `loss` (`loss.py`) multiplies each chunk's log-likelihood by its return and by a weight: 1 in trajectories that
   passed, the truncated chunk ratio (Eq. 8) in failed ones. It masks chunks where engine and trainer disagree (Eq. 9).
3. `level` sets the granularity of return, ratio and mask together, and each can also be set alone. So the paper's
   baselines are settings: Eq. 6 is `{return_level: trajectory, ratio_level: trajectory, mask_level: token}`.
4. If a task has an expert, `plan` starts rollouts on its path (`curriculum.py`). If all rollouts from one start fail,
   the loss imitates the expert's chunks up to the next start from which the policy succeeds (Eq. 10, `imitation.py`).

The settings can be checked without torch, which is imported only when the loss is called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from ale.specs.algorithm import Algorithm, RolloutHistory, RolloutRequest, RunOutline
from ale.specs.driver import Driver, DriverContext
from ale.specs.sandbox_protocols import Snapshots
from ale.specs.trainer import TrainBatch
from ale.task import Task
from ale.trajectory import Chunk, Trajectory
from ale_ipa.curriculum import Curriculum
from ale_ipa.expert_sources import ExpertSources
from ale_ipa.imitation import imitations
from ale_ipa.loss import ChunkLoss
from ale_ipa.returns import ReturnSignal, chunk_return, signals, step_signals
from ale_ipa.settings import ExpertsConfig, StartSettings
from ale_torch.losses import Level
from ale_torch.losses.groups import groups_of, sampled_size
from ale_train.batches import Credit, pack
from ale_train.starts import ExpertStates


class IPA(Driver, Algorithm):
    """The algorithm `ipa`."""

    api_version = ">=1.0,<1.2"

    class Config(StartSettings):
        """Settings of the algorithm `ipa`."""

        gamma: float = Field(0.95, gt=0, le=1, description="Discount per chunk (Eq. 7).")
        mismatch_threshold: float = Field(
            2.0,
            gt=0,
            description="H: a chunk (or what mask_level names) is masked where pi_old / mu is above this (Eq. 9).",
        )
        mismatch_lower: float | None = Field(
            None, gt=0, description="Also mask those whose ratio is below this; null: none, as in the paper."
        )
        return_signal: ReturnSignal = Field(
            "signed",
            description=(
                "R: signed (1 for a pass, negative_signal for a failure), raw (the reward), group_centered (the "
                "reward minus its group's mean; even groups teach nothing), or steps (only rewards of steps count)."
            ),
        )
        step_weight: float = Field(
            1.0,
            ge=0,
            description="Weight of the discounted rewards of steps in a chunk's return, where the reward gives them; "
            "0: none.",
        )
        negative_signal: float = Field(
            -0.05,
            le=0,
            description="R of a failed trajectory. TOPR uses -1; small policies collapse from about -0.3 on.",
        )
        normalization: Literal["token", "chunk", "trajectory"] = Field(
            "token",
            description=(
                "Z, which the loss of an update is divided by: its number of unmasked tokens, chunks or trajectories; "
                "even groups count too."
            ),
        )
        level: Level = Field("chunk", description="Granularity of the return, the ratio and the mask together.")
        return_level: Level | None = Field(
            None, description="Granularity of the return alone: chunk discounts by gamma, the others do not."
        )
        ratio_level: Level | None = Field(None, description="Granularity of the importance ratio alone (Eqs. 4, 8).")
        mask_level: Level | None = Field(None, description="Granularity of the mismatch mask alone (Eqs. 6, 9).")
        old_logprobs: Literal["recompute", "engine"] = Field(
            "recompute",
            description=(
                "Where pi_old comes from: recomputed by the trainer with the weights that sampled, or the engine's "
                "own logprobs (cheaper, but then nothing is masked)."
            ),
        )
        group_size: int = Field(8, gt=0, description="Rollouts per task in a step.")
        kl_coef: float = Field(
            0.0,
            ge=0,
            description=(
                "Weight in the loss of the KL divergence from the policy that RL began with; 0: no such term, and no "
                "reference policy is kept."
            ),
        )
        entropy_coef: float = Field(
            0.0, ge=0, description="Weight in the loss of minus the policy's entropy (entropy bonus); 0: no such term."
        )

        @model_validator(mode="after")
        def _refuse_settings_without_effect(self) -> IPA.Config:
            given = self.model_fields_set
            if "negative_signal" in given and self.return_signal != "signed":
                raise ValueError(
                    f"negative_signal does nothing with return_signal '{self.return_signal}'; leave it out"
                )
            return_level = self.return_level or self.level
            if self.return_signal == "steps" and self.step_weight == 0:
                raise ValueError("return_signal 'steps' with step_weight 0 leaves no signal; give step_weight")
            if "gamma" in given and self.gamma != 1 and return_level != "chunk":
                raise ValueError(
                    f"gamma discounts chunk by chunk and does nothing with returns at the level '{return_level}'; "
                    "leave it out or set it to 1"
                )
            masking = given & {"mismatch_threshold", "mismatch_lower", "mask_level"}
            if self.old_logprobs == "engine" and masking:
                raise ValueError(
                    f"{', '.join(sorted(masking))} cannot be set with "
                    "old_logprobs 'engine', with which nothing is masked; leave it out or set it to 'recompute'"
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
                    "start 'parallel' compares rollouts of at least two starts and needs a group_size of at least "
                    f"{self.rollouts_a_start * 2}"
                )
            if "anchors" in self.model_fields_set and self.anchors > self.most_starts:
                raise ValueError(
                    f"a group_size of {self.group_size} has rollouts for {self.most_starts} start chunks, not for "
                    f"{self.anchors}; raise group_size to {self.anchors * self.rollouts_a_start} or lower anchors"
                )
            return self

        @property
        def rollouts_a_start(self) -> int:
            """How many rollouts from one start a group needs at least, so that it has a gradient."""
            return 2 if self.return_signal == "group_centered" else 1

        @property
        def most_starts(self) -> int:
            """How many different starts the rollouts of a task can have at most."""
            return max(1, self.group_size // self.rollouts_a_start)

    config: Config

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self.group_size = config.group_size
        self.old_logprobs = config.old_logprobs
        self.reference = config.kl_coef > 0
        self._packs_all = self.reference or config.entropy_coef > 0  # these terms act on every rollout
        event = context.channel.event
        experts: ExpertsConfig | None = config.experts
        self._states = ExpertStates(event) if experts and experts.start_states == "snapshot" else None
        self._curriculum = Curriculum(config, config.most_starts, event, self._states)
        self._sources = ExpertSources(experts, self._curriculum.experts, event) if experts else None

    async def close(self) -> None:
        """Remove the snapshots of experts' states."""
        if self._states is not None:
            await self._states.close()

    @classmethod
    def objections(cls, config: Any, run: RunOutline) -> Iterable[str]:
        """Object to a run without the experts that the settings ask for."""
        return () if config.experts is None else config.experts.objections(run)

    def prepare(self, tasks: Sequence[Task], history: RolloutHistory) -> list[RolloutRequest]:
        """Request demonstrations of tasks that have no expert."""
        return [] if self._sources is None else self._sources.ask(tasks, history)

    def plan(self, tasks: Sequence[Task], history: RolloutHistory) -> list[RolloutRequest]:
        """Plan the rollouts; in a run with experts, a task's rollouts may start on its expert's path."""
        requests = super().plan(tasks, history)
        if self._sources is None:
            return requests
        self._sources.take(tasks, history)
        return self._curriculum.place(requests, history)

    @classmethod
    def needs(cls, config: Any) -> Mapping[str, Collection[str | type]]:
        """`demonstrate` needs a demonstrator, and `start_states: snapshot` needs snapshots."""
        found: dict[str, list[str | type]] = {}
        if config.experts and config.experts.demonstrate:
            found["tasks"] = ["demonstrations"]
        if config.experts and config.experts.start_states == "snapshot":
            found["sandbox"] = [Snapshots]
        return found

    def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch | None:
        """Pack the trajectories that have a trusted reward.

        Even groups (`group_centered`) have no policy gradient. With a KL term or an entropy bonus they are packed with
        a return of 0; else they are left out. Both ways they count in Z. After the rollouts, the batch holds the
        experts whose chunks are imitated, once for each group that imitates them.
        Metrics: `dropped_groups` is the number of even groups, if there are any. With experts, `experts` is the number
        of tasks that have one, and `start_chunk_pointer` the number of replayed chunks, as a mean over the pointers."""
        c = self.config
        made = signals(c.return_signal, trajectories, c.negative_signal)
        imitated = imitations(trajectories, self._curriculum.placed, c.il_when) if c.lambda_il else []
        gamma = c.gamma if (c.return_level or c.level) == "chunk" else 1.0
        steps = step_signals(c.return_signal, made, gamma) if c.step_weight else [[] for _ in made.trajectories]
        if not (any(made.values) or any(map(any, steps)) or imitated or self._packs_all):
            return None
        # Keys are objects, not trajectory ids, because two rollouts may share an id.
        signal_of = {id(t): value for t, value in zip(made.trajectories, made.values, strict=True)}
        steps_of = {id(t): values for t, values in zip(made.trajectories, steps, strict=True)}
        even = {i for i in made.even if not any(steps[i])}
        left_out = set() if self._packs_all else {id(made.trajectories[i]) for i in even}
        chunks_of = {id(i.expert): i.chunks for i in imitated}

        def credit(trajectory: Trajectory, chunk: Chunk, position: int, count: int) -> Credit | None:
            if id(trajectory) in chunks_of:
                part = position < chunks_of[id(trajectory)]
                return Credit(chunk_return(1.0, gamma, position, count), True) if part else None
            if not chunk.sampled or id(trajectory) in left_out:
                return None
            value = chunk_return(signal_of[id(trajectory)], gamma, position, count)
            of_steps = steps_of[id(trajectory)]
            value += c.step_weight * of_steps[position] if of_steps else 0.0
            return Credit(value, value > 0)

        def weight(trajectory: Trajectory, chunks: int, tokens: int) -> float:
            if id(trajectory) in left_out:
                chunks, tokens = sampled_size(trajectory)
            return float({"token": tokens, "chunk": chunks, "trajectory": chunks > 0}[c.normalization])

        members = groups_of(made.trajectories)
        even_groups = sum(all(i in even for i in group) for group in members)
        dropped = {"dropped_groups": float(even_groups)} if even_groups else {}
        metrics = {**dropped, **self._curriculum.metrics()}
        return pack([*made.trajectories, *(i.expert for i in imitated)], credit, weight, metrics)

    @property
    def loss(self) -> ChunkLoss:
        c = self.config
        return ChunkLoss(
            ratio_level=c.ratio_level or c.level,
            mask_level=c.mask_level or c.level,
            mismatch_threshold=c.mismatch_threshold,
            mismatch_lower=c.mismatch_lower,
            old_logprobs=c.old_logprobs,
            lambda_rl=c.lambda_rl,
            lambda_il=c.lambda_il,
            kl_coef=c.kl_coef,
            normalization=c.normalization,
            entropy_coef=c.entropy_coef,
        )

    def state(self) -> dict[str, Any]:
        """Return the state of the curriculum and the experts."""
        demonstrated = self._sources.state() if self._sources else {}
        return {**self._curriculum.state(), "demonstrated": demonstrated}

    @classmethod
    def renumber(cls, state: Mapping[str, Any], steps: int) -> dict[str, Any]:
        """Shift the steps that the curriculum remembers."""
        return {**state, **Curriculum.renumber(state, steps)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._curriculum.restore(state)
        if self._sources is not None:
            self._sources.restore(state["demonstrated"])
