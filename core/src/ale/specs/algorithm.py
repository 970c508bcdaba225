"""The algorithm contract: what to roll out, what to train on, and the loss. Pure functions and no backend.

`plan` says where rollouts start, `batch` turns finished trajectories into a packed `TrainBatch`, `loss` is handed
to the trainer. The same contract serves supervised training (`algo_sft`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ale.specs.driver import Driver
from ale.specs.trainer import LossInput, LossOutput, TrainBatch
from ale.task import Task
from ale.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One rollout to make. With an `expert`, its first `start_chunk` chunks are replayed before the policy takes over."""

    task: Task
    group: str
    seed: int
    start_chunk: int = 0
    expert: Trajectory | None = None


@dataclass(frozen=True, slots=True)
class RolloutHistory:
    """What the run knows when it plans a step."""

    step: int
    seed: int
    trajectories: Sequence[Trajectory] = ()
    """The trajectories of the step before."""
    experts: Mapping[str, Sequence[Trajectory]] = field(default_factory=dict)
    """Task id -> trajectories of it that passed and that the policy did not make in this run's RL: demonstrations, data."""
    lost_replays: Mapping[str, int] = field(default_factory=dict)
    """Group -> rollouts of it that were given up since the last plan, because the replay did not reach their start."""


class Algorithm(Driver, ABC):
    """What is learnt from rollouts, and how."""

    group_size: int = 1
    """Rollouts of each task in a step; an algorithm with a setting for it sets it in `__init__`."""

    old_logprobs: str = "engine"
    """`recompute`: the run fills `TrainBatch.old_logprobs` from the trainer before the first update of a step;
    `engine`: they are the engine's; `none`: the loss does not use them."""

    reference: bool = False
    """Whether the loss compares with a reference policy: the run then keeps the policy that RL begins with as one and
    fills `TrainBatch.reference_logprobs`. Say `trainer: reference` in `Driver.needs` too."""

    @classmethod
    def wants_experts(cls, config: Any) -> Literal["no", "welcome", "needed"]:
        """Whether, with these settings, `plan` makes use of `RolloutHistory.experts`.

        A run that has `rl.experts` for an algorithm that does not is refused, and so is one without for `needed`.
        """
        return "no"

    def plan(self, tasks: Sequence[Task], history: RolloutHistory) -> list[RolloutRequest]:
        """Which rollouts to make for these tasks; by default `group_size` from the beginning of each."""
        requests = []
        for i, task in enumerate(tasks):
            group = f"{history.step}.{i}.{task.id}"
            for j in range(self.group_size):
                seed = ((history.seed * 1_000_003 + history.step) * 1_009 + i) * 1_009 + j
                requests.append(RolloutRequest(task, group, seed % (1 << 62)))
        return requests

    @abstractmethod
    def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch | None:
        """Pack what is to be trained on; None where nothing carries a gradient.

        The run hands it no rejected trajectory. One without a `reward` (its sandbox was lost) is no failure: where rewards
        are learnt from it carries no loss, and changes nothing for the others.
        """

    @abstractmethod
    def loss(self, inputs: LossInput) -> LossOutput:
        """The loss of one micro-batch; micro-batches add up."""

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Readable metrics from the totals that `TrainerBackend.update` returned.

        `entropy` is the policy's mean entropy in nats over the tokens with loss. `rl.min_entropy` is compared with it, and
        the progress display and the report show it; without it nothing guards a run against collapse.
        """
        return dict(totals)
