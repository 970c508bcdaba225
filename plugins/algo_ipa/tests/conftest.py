"""The algorithm, rollouts made by hand, runs without a policy, and loss inputs from a packed batch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from support.loss_samples import loss_input as input_of_part
from support.loss_samples import rollout

from ale.specs.algorithm import RolloutHistory, RolloutRequest
from ale.specs.driver import DriverContext
from ale.specs.trainer import LossInput, TrainBatch
from ale.task import Task, TaskTests
from ale.trajectory import Trajectory
from ale_ipa import IPA
from ale_testing.recording_channel import RecordingChannel
from ale_train.starts import REPLAY_LOST, ExpertReplay

Build = Callable[..., Trajectory]
TASKS = [Task(id=name, instruction="Do it.", tests=TaskTests(command="true")) for name in ("a", "b")]


def make_ipa(**config: Any) -> IPA:
    """The algorithm with these settings."""
    return IPA(IPA.Config(**config), DriverContext())


def build_trajectory(
    name: str, reward: float | None, chunk_lengths: Iterable[int] = (1,), **changes: Any
) -> Trajectory:
    """One sequence of chunks of these lengths; the engine's log-probabilities are -0.1, -0.2, ... in each of them."""
    lengths = list(chunk_lengths)
    engine = [-0.1 * (j + 1) for n in lengths for j in range(n)]
    return rollout(name, reward, [lengths], engine, **{"task_id": name, **changes})


def input_of(
    batch: TrainBatch,
    new: list[float],
    old: list[float] | None,
    part: slice = slice(None),
    dtype: str = "float32",
    **how: Any,
) -> LossInput:
    """The tokens with loss (or a slice of them) as a micro-batch; no gradient unless asked for."""
    found = input_of_part(batch, new, old, part=part, dtype=dtype, **how)
    return replace(found, logprobs=found.logprobs.detach())


@pytest.fixture(scope="session")
def make() -> Callable[..., IPA]:
    """Makes algorithms."""
    return make_ipa


@pytest.fixture(scope="session")
def build() -> Callable[..., Trajectory]:
    """Makes trajectories."""
    return build_trajectory


@pytest.fixture(scope="session")
def loss_input() -> Callable[..., LossInput]:
    """Makes loss inputs."""
    return input_of


@dataclass
class Course:
    """A run without a policy: each step's rollouts end as `passes(request)` says, or their replays are lost where it
    says None."""

    build: Build
    config: dict[str, Any]
    experts: dict[str, Sequence[Trajectory]]
    step: int = 0
    history: tuple[Trajectory, ...] = ()
    lost: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        channel = RecordingChannel()
        self.events = channel.events
        context = DriverContext(channel=channel)
        self.ipa = IPA(IPA.Config(**self.config), context)
        self.demonstrations = [t for known in self.experts.values() for t in known]

    def plan(self, tasks: Sequence[Task] = TASKS[:1]) -> list[RolloutRequest]:
        """The next step's requests."""
        lost = {group: {REPLAY_LOST: n} for group, n in self.lost.items()}
        history = RolloutHistory(self.step + 1, 7, self.history, lost, demonstrations=self.demonstrations)
        return self.ipa.plan(tasks, history)

    def go(
        self,
        passes: Callable[[RolloutRequest], bool | None],
        chunks: int = 3,
        tasks: Sequence[Task] = TASKS[:1],
    ) -> list[RolloutRequest]:
        """Make the next step, with rollouts of so many chunks."""
        requests = self.plan(tasks)
        self.step += 1
        made = []
        self.lost.clear()
        for i, request in enumerate(requests):
            if (passed := passes(request)) is None:
                self.lost[request.group] += 1
                continue
            t = self.build(f"{self.step}.{i}", float(passed), [1] * chunks, group=request.group)
            made.append(replace(t, task_id=request.task.id, step=self.step, start_chunk=request.start_chunk))
        self.history = tuple(made)
        return requests

    def metrics(self) -> dict[str, float]:
        """What a batch of the newest rollouts tells."""
        batch = self.ipa.batch(self.history)
        assert batch is not None
        return dict(batch.metrics)

    def resumed(self) -> Course:
        """The same run in another process: its algorithm is a new one that has read the state of this one's."""
        state = json.loads(json.dumps(self.ipa.state()))
        other = Course(self.build, self.config, self.experts, self.step, self.history, Counter(self.lost))
        other.ipa.restore(state)
        return other

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind."""
        return [data for k, data in self.events if k == kind]


def expert_of(request: RolloutRequest) -> str:
    """The id of the expert that is replayed; nothing where none is."""
    assert request.start is None or isinstance(request.start, ExpertReplay)
    return request.start.expert.id if request.start else ""


@pytest.fixture
def course(build: Build) -> Callable[..., Course]:
    """Makes a run in which task `a` has an expert of some chunks (0: none)."""

    def make(chunks: int = 5, **config: Any) -> Course:
        if not chunks:
            return Course(build, config, {})
        return Course(build, {"experts": {}, **config}, {"a": [expert(build, "expert", chunks)]})

    return make


def expert(build: Build, name: str, chunks: int, task: str = "a") -> Trajectory:
    """A success of so many chunks that the policy did not sample."""
    made = build(name, 1.0, [1] * chunks, task_id=task, group="", step=0)
    return replace(made, chunks=tuple(replace(c, sampled=False, logprobs=(), versions=()) for c in made.chunks))
