"""The half of the loop that makes rollouts: it admits groups while the buffer has room, and hands in what finishes.

1. Each group that is admitted gets the next ordinal and the next task; a task whose group was dropped as late comes
   back once, before new ones. The algorithm plans the groups that are admitted together, for the step at which they
   will be trained on if all goes in order.
2. All rollouts of a group are made by `Rollouts`, which stores each as it finishes and bounds how many run.
3. Dynamic sampling (as in DAPO): a group whose rewards are all alike teaches nothing. It is closed when it finishes,
   and another one is admitted, at most `rl.resample_even_groups` times a step.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ale.errors import AleError, PluginError
from ale.pipeline.workbench import Workbench
from ale.rollout.episode import PREPARE_STAGE, RL_STAGE, StageInfo
from ale.rollout.filters import DIVERGED
from ale.specs.algorithm import RolloutHistory, RolloutRequest
from ale.task import TRAIN, Task
from ale.trajectory import Trajectory
from ale_rl.buffer import OpenGroup, SampleBuffer
from ale_rl.config import RLConfig
from ale_training import retokenize

LATE = "late"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A task on its way into the buffer, and whether a group of it was dropped before."""

    ordinal: int
    task: Task
    again: bool


class Producer:
    """See the module's docstring. `changed` is set whenever the buffer has changed."""

    def __init__(
        self,
        bench: Workbench,
        config: RLConfig,
        buffer: SampleBuffer[Trajectory],
        tasks: Iterator[Task],
        demonstrations: Sequence[Trajectory] = (),
    ) -> None:
        self.changed = asyncio.Event()
        self.steps_done = 0
        """The steps that have been trained, which the trainer counts up."""
        self._bench, self._config, self._buffer = bench, config, buffer
        self._tasks, self._demonstrations = tasks, demonstrations
        self._returned: deque[Task] = deque()
        self._admitted: dict[int, Admitted] = {}
        self._finished: list[tuple[int, Sequence[Trajectory]]] = []
        """By ordinal, the rollouts that no plan has seen."""
        self._groups: dict[int, set[str]] = {}
        """For each ordinal whose rollouts no plan has seen, the names of its groups."""
        self._places: Counter[int] = Counter()
        """For each step, how many groups were planned for it."""
        self._ordinal = 0
        self._room = asyncio.Event()
        self._even = self._replaced = self._late = 0
        self._diverged: set[int] = set()
        """The open groups of which a rollout was given up because it never reached its start."""

    async def run(self) -> None:
        """Admit groups until the last batch is complete, and make their rollouts."""
        running: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as groups:
            while self.steps_done < self._config.steps:
                self._room.clear()
                admitted = [self._admit() for _ in range(min(self._buffer.room, self._wanted))]
                for step, members in self._by_step(admitted):
                    for ordinal, requests in (await self._plan(step, members)).items():
                        task = groups.create_task(self._roll_out(ordinal, step, requests))
                        running.add(task)
                        task.add_done_callback(running.discard)
                await self._room.wait()
            for task in running:  # of groups that were dropped as late
                task.cancel()

    def trained(self) -> None:
        """Count a step, once its weights are published, and close its groups."""
        taken = {group.ordinal for group in self._buffer.groups() if group.taken}
        self._admitted = {ordinal: one for ordinal, one in self._admitted.items() if ordinal not in taken}
        self._diverged -= taken
        self._buffer.trained()
        self.steps_done += 1
        self._room.set()

    def expire(self, version: int) -> None:
        """Drop the groups for which alone the trainer has waited too long; each task comes back once."""
        for group in self._buffer.expire(version):
            gone = self._admitted.pop(group.ordinal)
            self._late += 1
            self._bench.store.add_event("late_group", ordinal=group.ordinal, task=gone.task.id, again=gone.again)
            if not gone.again:
                self._returned.append(gone.task)
            self._room.set()

    def require_rollouts(self, groups: Sequence[OpenGroup[Trajectory]], step: int) -> list[Trajectory]:
        """Return the rollouts of a batch. Raises `AleError` if there are none, unless some did not reach their start,
        because the algorithm reads about these when it plans the next groups."""
        rollouts = [trajectory for group in groups for trajectory in group.rollouts or ()]
        if not rollouts and not any(group.ordinal in self._diverged for group in groups):
            reasons = self._bench.store.reasons(RL_STAGE, step) or "none was made"
            raise AleError(
                f"No rollout of step {step} can be trusted: {reasons}. The trajectories of the run say more."
            )
        return rollouts

    def metrics(self) -> dict[str, float]:
        """Return what happened to groups since the last call: how many were even, replaced, or dropped as late."""
        found = {"even_groups": self._even, "replaced_groups": self._replaced, "late_groups": self._late}
        self._even = self._replaced = self._late = 0
        return {name: float(value) for name, value in found.items()}

    @property
    def _wanted(self) -> int:
        """The number of groups that the remaining steps need besides the open ones."""
        return (self._config.steps - self.steps_done) * self._config.prompts_per_step - self._buffer.open

    def _admit(self) -> Admitted:
        again = bool(self._returned)
        task = self._returned.popleft() if again else next(self._tasks)
        admitted = Admitted(self._ordinal, task, again)
        self._admitted[self._ordinal] = admitted
        self._buffer.admit(self._ordinal, self._bench.engine.version)
        self._ordinal += 1
        return admitted

    def _by_step(self, admitted: Sequence[Admitted]) -> Iterator[tuple[int, list[Admitted]]]:
        """Yield the step for which groups are planned, and the groups; a task is at most once among them."""
        before = self._buffer.open - len(admitted)
        members: list[Admitted] = []
        last = 0
        for i, one in enumerate(admitted):
            step = self.steps_done + 1 + (before + i) // self._config.prompts_per_step
            if members and (step != last or one.task.id in {member.task.id for member in members}):
                yield last, members
                members = []
            members.append(one)
            last = step
        if members:
            yield last, members

    async def _plan(self, step: int, members: Sequence[Admitted]) -> dict[int, list[RolloutRequest]]:
        """Let the algorithm plan groups; returns the requests of each ordinal."""
        bench, algorithm = self._bench, self._bench.algorithm
        tasks = [member.task for member in members]
        finished = sorted(self._finished, key=lambda one: one[0])
        known = {name for ordinal, _ in finished for name in self._groups.pop(ordinal)}
        given_up = bench.rollouts.given_up
        history = RolloutHistory(
            step,
            bench.config.seed,
            [t for _, rollouts in finished for t in rollouts],
            rejected={name: given_up.pop(name) for name in known & given_up.keys()},
            demonstrations=self._demonstrations,
            demonstrator=bench.tasks.demonstrator,
            retokenize=lambda t: retokenize(t, bench.sessions.tokenizer, bench.sessions.form),
            place=self._places[step],
        )
        self._finished.clear()
        self._places[step] += len(tasks)
        while wanted := algorithm.prepare(tasks, history):
            prepared = await bench.rollouts.run(wanted, StageInfo(PREPARE_STAGE, step, TRAIN, 1.0))
            history = replace(history, prepared=prepared)
        ordinals = {member.task.id: member.ordinal for member in members}
        planned: dict[int, list[RolloutRequest]] = {ordinal: [] for ordinal in ordinals.values()}
        for request in algorithm.plan(tasks, history):
            if request.task.id not in ordinals:
                raise PluginError(
                    f"algorithm: '{bench.config.algorithm.use}' plans a rollout of the task '{request.task.id}', which "
                    "is not among the tasks that its plan() was called with."
                )
            planned[ordinals[request.task.id]].append(request)
        return planned

    async def _roll_out(self, ordinal: int, step: int, requests: Sequence[RolloutRequest]) -> None:
        bench, c = self._bench, self._bench.config.rollout
        stage = StageInfo(RL_STAGE, step, TRAIN, c.temperature, c.top_p, c.top_k)
        rollouts = await bench.rollouts.run(requests, stage)
        oldest = min((t.policy_version for t in rollouts), default=None)
        if not self._buffer.finish(ordinal, rollouts, oldest):
            for trajectory in rollouts:
                bench.store.reject_trajectory(trajectory.id, LATE)
            return
        self._groups[ordinal] = {request.group for request in requests}
        given_up = bench.rollouts.given_up
        if any(given_up[name][DIVERGED] for name in self._groups[ordinal] & given_up.keys()):
            self._diverged.add(ordinal)
        if self._is_replaced(rollouts):
            self._buffer.drop(ordinal)
            del self._admitted[ordinal]
            self._diverged.discard(ordinal)
            rollouts = []
            self._room.set()
        self._finished.append((ordinal, rollouts))
        self.changed.set()

    def _is_replaced(self, rollouts: Sequence[Trajectory]) -> bool:
        """Return whether a finished group is even and gives way to another one."""
        if not rollouts or not is_even(rollouts):
            return False
        self._even += 1
        replaced = self._replaced < self._config.resample_even_groups
        self._replaced += replaced
        return replaced


def is_even(rollouts: Sequence[Trajectory]) -> bool:
    """Return whether the rollouts of each group have equal rewards, those of steps too."""
    rewards: dict[str, set[tuple[float, ...]]] = {}
    for t in rollouts:
        if t.reward is not None:
            rewards.setdefault(t.group, set()).add((t.reward.value, *t.reward.by_chunk))
    return all(len(values) == 1 for values in rewards.values()) and bool(rewards)
