"""The algorithm contract: an algorithm decides what to roll out, what to train on, and the loss. It knows no backend.

1. `plan` returns the rollouts to make; `state` returns what it learns between steps, and `restore` reads that back.
2. `batch` turns finished trajectories into a packed `TrainBatch`. It has no side effects.
3. `loss` returns a value that holds only settings: the trainer calls it, possibly in another process.

The same contract serves supervised training (`algo_sft`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ale.errors import PluginError
from ale.specs.start import Responder, Start
from ale.specs.trainer import Loss, TrainBatch
from ale.task import Task
from ale.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One rollout to make. Without a `start` it begins at the beginning of its task, with the policy."""

    task: Task
    group: str
    seed: int
    start: Start | None = None

    @property
    def start_chunk(self) -> int:
        """The number of chunks that are answered before the policy answers."""
        return 0 if self.start is None else self.start.chunks


def _nobody(task: Task, seed: int) -> Responder | None:
    return None


def _keep(trajectory: Trajectory) -> Trajectory:
    return trajectory


@dataclass(frozen=True, slots=True)
class RolloutHistory:
    """The state of a run when it plans groups of rollouts."""

    step: int
    """The step in which they will be trained on, if all goes in order."""
    seed: int
    trajectories: Sequence[Trajectory] = ()
    """Those that finished since the last plan; in a synchronous run, the trajectories of the previous step."""
    rejected: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """For each group, how many of its rollouts were given up since the last plan, by the reason why the last try was
    rejected, such as `sandbox failure`. `replay failure` means that the rollout did not reach its start."""
    prepared: Sequence[Trajectory] = ()
    """The results of the rollouts that `Algorithm.prepare` asked for last."""
    demonstrations: Sequence[Trajectory] = ()
    """The demonstrations of the run's supervised stages, passed or not."""
    demonstrator: Callable[[Task, int], Responder | None] = _nobody
    """`TaskSource.demonstrator` of the run's tasks."""
    retokenize: Callable[[Trajectory], Trajectory] = _keep
    """It converts a trajectory of another policy into this policy's tokens."""
    place: int = 0
    """How many tasks were planned for this step before, such as those that these replace."""


@dataclass(frozen=True, slots=True)
class RunOutline:
    """The parts of a run file for which an algorithm may have to refuse a run."""

    demonstrations: bool = True
    """Whether supervised stages provide demonstrations."""
    resample_even_groups: int = 0
    """The key of the same name in the section `rl`."""
    async_ratio: int = 0
    """The key of the same name in the section `rl`: how stale the rollouts may be."""
    agents_inside: bool = False
    """Whether every agent of the run is a process inside its sandbox."""


class Algorithm(ABC):
    """Decides what is learned from rollouts, and how."""

    group_size: int = 1
    """The number of rollouts of each task in a step; an algorithm with a setting for it sets it in `__init__`."""

    old_logprobs: str = "engine"
    """`recompute`: the run fills `TrainBatch.old_logprobs` from the trainer before the first update of a step;
    `engine`: the engine's log-probabilities are used as the old ones; `none`: the loss does not use them."""

    reference: bool = False
    """Whether the loss compares with a reference policy: the run then loads the policy that RL begins with as the
    reference and fills `TrainBatch.reference_logprobs`."""

    critic: bool = False
    """Whether `credit` uses the trainer's values, which the run then puts into the batch's columns as `values`."""

    @classmethod
    def objections(cls, config: Any, run: RunOutline) -> Iterable[str]:
        """Return the reasons why a run that makes rollouts for this algorithm cannot work with these settings, one
        sentence each; a single reason is enough to refuse the run."""
        return ()

    def prepare(self, tasks: Sequence[Task], history: RolloutHistory) -> list[RolloutRequest]:
        """Return rollouts to make before those of this step are planned, such as demonstrations of these tasks.

        The run calls it again with the results in `history.prepared`, until it returns none."""
        return []

    def plan(self, tasks: Sequence[Task], history: RolloutHistory) -> list[RolloutRequest]:
        """Return the rollouts to make for these tasks; by default `group_size` from the beginning of each task."""
        requests = []
        for i, task in enumerate(tasks, history.place):
            group = f"{history.step}.{i}.{task.id}"
            for j in range(self.group_size):
                seed = ((history.seed * 1_000_003 + history.step) * 1_009 + i) * 1_009 + j
                requests.append(RolloutRequest(task, group, seed % (1 << 62)))
        return requests

    @abstractmethod
    def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch | None:
        """Pack what is to be trained on; None if nothing carries a gradient. It changes nothing in the algorithm.

        It gets all rollouts of a step, so that statistics of groups and of the batch cover the whole step; the run then
        cuts the batch between groups into `rl.updates_per_step` updates (`ale_train.batches.split`).

        It gets no rejected trajectory. A trajectory without a `reward` (its sandbox was lost) is not a failed one: an
        algorithm that learns from rewards gives it no loss and does not let it change the others. What the algorithm
        reports of its choice goes into `TrainBatch.metrics`."""

    def credit(self, batch: TrainBatch, trajectories: Sequence[Trajectory]) -> TrainBatch:
        """Return the step's whole batch, made by `batch` from these trajectories, once it has values and reference
        log-probabilities: for advantages that depend on them. By default nothing changes."""
        return batch

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """Return the loss of a batch; it is the same value for the whole run."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold for a run to go on as if it had not been interrupted, as plain JSON. By
        default this is empty."""
        return {}

    @classmethod
    def renumber(cls, state: Mapping[str, Any], steps: int) -> dict[str, Any]:
        """Return what `state` returned after so many steps for a new run, which counts its steps from 1 again. By
        default nothing changes; override it if the state holds numbers of steps."""
        return dict(state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned, in an algorithm of the same settings that has planned nothing yet. Raises
        `PluginError` if that is impossible."""
        if state:
            raise PluginError(
                f"The algorithm {type(self).__name__} keeps no state, but the checkpoint holds {', '.join(state)}; "
                "resume with the algorithm that wrote it."
            )
