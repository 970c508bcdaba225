"""Makes the rollouts of the loop: it admits groups while the buffer has room, and hands in those that finish.

1. Each group that is admitted gets the next ordinal and the next task; a task whose group was dropped as late comes
   back once, before new ones. The algorithm plans the groups that are admitted together, for the step at which they
   will be trained on if all goes in order.
2. All rollouts of a group are made by `Rollouts`, which stores each as it finishes and bounds how many run.
3. Dynamic sampling (as in DAPO): a group whose rewards are all alike teaches nothing. It is closed when it finishes,
   and another one is admitted, at most `rl.resample_even_groups` times a step.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from ale.errors import AleError, PluginError
from ale.registry.foreign_code import no_silent_end
from ale.rollout.episode import PREPARE_STAGE, RL_STAGE, StageInfo
from ale.rollout.filters import DIVERGED
from ale.specs.algorithm import RolloutHistory, RolloutRequest
from ale.store.run_store import REJECT
from ale.task import TRAIN, Task
from ale.trajectory import Trajectory
from ale_train.batches.retokenization import retokenize
from ale_train.config.rl import RLConfig
from ale_train.rl.rollout_metrics import is_even
from ale_train.rl.sample_buffer import OpenGroup, SampleBuffer
from ale_train.rl.spare_rollouts import SpareRollouts
from ale_train.rl.task_groups import FinishedGroup, TaskGroup
from ale_train.workbench.workbench import Workbench

LATE = "late"


class RolloutProducer:
    """Admits groups of rollouts, makes them, and hands them to the buffer; it sets `changed` whenever it has done
    so."""

    def __init__(
        self,
        bench: Workbench,
        config: RLConfig,
        buffer: SampleBuffer[Trajectory],
        tasks: Iterator[Task],
        demonstrations: Sequence[Trajectory] = (),
    ) -> None:
        self.changed = asyncio.Event()
        self.finished_at = time.monotonic()
        """When the newest group has finished."""
        self.steps_done = 0
        """The steps that have been trained, which the trainer counts up."""
        self._bench, self._config, self._buffer = bench, config, buffer
        self._tasks, self._demonstrations = tasks, demonstrations
        self.spares = SpareRollouts(bench.rollouts, bench.config.rollout.spare)
        self._taken = 0
        self._returned: deque[tuple[int, Task]] = deque()
        self._admitted: dict[int, TaskGroup] = {}
        self._finished: list[FinishedGroup] = []
        self._planned: Counter[int] = Counter()
        """For each step, how many groups were planned for it."""
        self._ordinal = 0
        self._room = asyncio.Event()
        self._even = self._replaced = self._late = 0
        self.replaced_tokens = 0
        """The tokens that were sampled for even groups that gave way to others."""
        self._leaving: dict[int, TaskGroup] = {}
        """The groups that were dropped as late, and still run."""
        self._diverged: set[int] = set()
        """The open groups of which a rollout was given up because it never reached its start."""

    async def run(self) -> None:
        """Admit groups until the last batch is complete, and make their rollouts."""
        running: set[asyncio.Task[None]] = set()

        def begin(members: Iterable[TaskGroup]) -> None:
            for member in members:
                task = groups.create_task(self._roll_out(member))
                running.add(task)
                task.add_done_callback(running.discard)

        async with asyncio.TaskGroup() as groups:
            begin(await self._restored())
            while self.steps_done < self._config.steps:
                self._room.clear()
                admitted = [self._admit() for _ in range(min(self._buffer.room, self._wanted))]
                for step, members in self._by_step(admitted):
                    await self._plan(step, members)
                    begin(members)
                await self._room.wait()
            for task in running:  # of groups that were dropped as late
                task.cancel()

    async def next_batch(self, step: int) -> list[OpenGroup[Trajectory]]:
        """Wait until the buffer has the batch of a step for the trainer, whose weights are those of the engine."""
        bench, config = self._bench, self._config
        bench.progress.stage(f"RL step {step}/{config.steps}", config.prompts_per_step * bench.algorithm.group_size)
        with bench.stopwatch("rollout"):
            while True:
                self.changed.clear()
                batch = self._buffer.take(bench.engine.version)
                if batch is not None:
                    return batch
                try:
                    async with asyncio.timeout(self._buffer.patience_left_s):
                        await self.changed.wait()
                except TimeoutError:
                    self._expire()

    def close_step(self) -> None:
        """Count a step, once its weights are published, and close its groups."""
        taken = {group.ordinal for group in self._buffer.groups() if group.taken}
        self._admitted = {ordinal: one for ordinal, one in self._admitted.items() if ordinal not in taken}
        self._diverged -= taken
        self._buffer.trained()
        self.steps_done += 1

    def admit_more(self) -> None:
        """Let groups take the place of those that a step has closed."""
        self._room.set()

    def _expire(self) -> None:
        """Drop the groups for which alone the trainer has waited too long; each task comes back once."""
        for group in self._buffer.expire(self._bench.engine.version):
            gone = self._leaving[group.ordinal] = self._admitted.pop(group.ordinal)
            self._late += 1
            self._bench.store.add_event("late_group", ordinal=group.ordinal, task=gone.task.id, again=gone.again)
            if not gone.again:
                self._returned.append((gone.nth, gone.task))
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

    def stored_rollouts(self) -> frozenset[str]:
        """Return the ids of the rollouts of earlier parts of the run that were not trained on yet."""
        untrained = "stage = ? AND rejected IS NULL AND id NOT IN (SELECT trajectory FROM trained)"
        return frozenset(
            id for (id,) in self._bench.store.rows(f"SELECT id FROM trajectories WHERE {untrained}", (RL_STAGE,))
        )

    def is_open(self) -> bool:
        """Return whether a group is open: then something has to move."""
        return self._buffer.open > 0

    @property
    def ready(self) -> int:
        """How many groups are finished and have not been taken."""
        return self._buffer.ready

    def buffer_metrics(self) -> dict[str, float]:
        """Return how many groups are open, without the batch in training, and how many of them are ready for it."""
        open_now = [group for group in self._buffer.groups() if not group.taken]
        return {"buffer/open": float(len(open_now)), "buffer/ready": float(self._buffer.ready)}

    @property
    def open_groups(self) -> set[tuple[int, str]]:
        """The step and name of each group that is open, but for the batch in training, or late and still running."""
        taken = {group.ordinal for group in self._buffer.groups() if group.taken}
        running = [one for ordinal, one in (self._admitted | self._leaving).items() if ordinal not in taken]
        return {(one.step, request.group) for one in running for request in one.requests}

    def metrics(self) -> dict[str, float]:
        """Return what happened to groups since the last call: how many were even, replaced, or dropped as late."""
        found = {"even_groups": self._even, "replaced_groups": self._replaced, "late_groups": self._late}
        self._even = self._replaced = self._late = 0
        return {name: float(value) for name, value in found.items()} | self.spares.metrics()

    def state(self) -> dict[str, Any]:
        """Return where production stands, as JSON values: finished rollouts by their ids, running ones as requests. A
        group that begins on an expert's path is planned again, since its requests cannot be written."""
        open_groups = {group.ordinal: group for group in self._buffer.groups()}
        return {
            "taken": self._taken,
            "ordinal": self._ordinal,
            "planned": [[step, count] for step, count in self._planned.items() if step > self.steps_done],
            "returned": [nth for nth, _ in self._returned],
            "open": [one.state(open_groups[n], n in self._diverged) for n, one in self._admitted.items()],
            "finished": [one.state() for one in self._finished],
            "given_up": {group: dict(kinds) for group, kinds in self._bench.rollouts.given_up.items()},
            "diverged": sorted(self._diverged),
            "counts": {
                "even": self._even,
                "replaced": self._replaced,
                "late": self._late,
                "replaced_tokens": self.replaced_tokens,
            },
        }

    def restore(self, state: Mapping[str, Any], steps_done: int) -> None:
        """Go on from what `state` returned, after so many steps, with a buffer that is empty."""
        self.steps_done, self._taken, self._ordinal = steps_done, state["taken"], state["ordinal"]
        needed = {*state["returned"], *(one["nth"] for one in state["open"])}
        tasks = {nth: task for nth, task in enumerate(islice(self._tasks, self._taken)) if nth in needed}
        self._returned.extend((nth, tasks[nth]) for nth in state["returned"])
        self._planned = Counter({step: count for step, count in state["planned"]})
        ids = {id for one in state["open"] for id in one["rollouts"] or ()}
        ids |= {id for one in state["finished"] for id in one["rollouts"]}
        stored = self._load(ids)
        for one in state["open"]:
            task = tasks[one["nth"]]
            admitted = TaskGroup(
                ordinal=one["ordinal"], nth=one["nth"], task=task, again=one["again"], step=one["step"]
            )
            admitted.requests = [RolloutRequest(task, group, seed) for group, seed in one["requests"]]
            self._admitted[admitted.ordinal] = admitted
            self._buffer.admit(admitted.ordinal, one["version"])
            if one["rollouts"] is not None:
                self._buffer.finish(admitted.ordinal, [stored[id] for id in one["rollouts"]], one["version"])
        for one in state["finished"]:
            rollouts = [stored[id] for id in one["rollouts"]]
            self._finished.append(FinishedGroup(one["ordinal"], rollouts, frozenset(one["groups"])))
        self._bench.rollouts.given_up.update({group: Counter(kinds) for group, kinds in state["given_up"].items()})
        self._diverged = set(state["diverged"])
        counts = state["counts"]
        self._even, self._replaced, self._late = counts["even"], counts["replaced"], counts["late"]
        self.replaced_tokens = counts["replaced_tokens"]

    def _load(self, ids: set[str]) -> dict[str, Trajectory]:
        """Return stored rollouts by their ids."""
        wanted = "id IN (SELECT value FROM json_each(?))"
        return {t.id: t for t in self._bench.store.trajectories(wanted, (json.dumps(sorted(ids)),))}

    async def _restored(self) -> list[TaskGroup]:
        """Return the groups of a checkpoint that were running; those without requests are planned again."""
        waiting = {group.ordinal for group in self._buffer.groups() if group.running}
        members = [one for ordinal, one in sorted(self._admitted.items()) if ordinal in waiting]
        for one in members:
            if not one.requests:
                await self._plan(one.step, [one])
        return members

    @property
    def _wanted(self) -> int:
        """The number of groups that the remaining steps need besides the open ones."""
        return (self._config.steps - self.steps_done) * self._config.prompts_per_step - self._buffer.open

    def _admit(self) -> TaskGroup:
        again = bool(self._returned)
        nth, task = self._returned.popleft() if again else (self._taken, next(self._tasks))
        self._taken += not again
        admitted = TaskGroup(ordinal=self._ordinal, nth=nth, task=task, again=again)
        self._admitted[self._ordinal] = admitted
        self._buffer.admit(self._ordinal, self._bench.engine.version)
        self._ordinal += 1
        return admitted

    def _by_step(self, admitted: Sequence[TaskGroup]) -> Iterator[tuple[int, list[TaskGroup]]]:
        """Yield the step for which groups are planned, and the groups; a task is at most once among them."""
        before = self._buffer.open - len(admitted)
        members: list[TaskGroup] = []
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

    async def _plan(self, step: int, members: Sequence[TaskGroup]) -> None:
        """Let the algorithm plan these groups."""
        bench, algorithm = self._bench, self._bench.algorithm
        tasks = [member.task for member in members]
        finished = sorted(self._finished, key=lambda one: one.ordinal)
        seen = {one.ordinal for one in finished}
        known = frozenset[str]().union(*(one.groups for one in finished))
        given_up = bench.rollouts.given_up
        for member in members:
            member.step = step
        history = RolloutHistory(
            step,
            bench.config.seed,
            [t for one in finished for t in one.rollouts],
            rejected={name: given_up[name] for name in known & given_up.keys()},
            demonstrations=self._demonstrations,
            demonstrator=bench.tasks.demonstrator,
            retokenize=lambda t: retokenize(t, bench.sessions.tokenizer, bench.sessions.form),
            place=self._planned[step],
        )
        while wanted := algorithm.prepare(tasks, history):
            prepared = await bench.rollouts.run(wanted, StageInfo(PREPARE_STAGE, step, TRAIN, temperature=1.0))
            history = replace(history, prepared=prepared)
        of_task = {member.task.id: member for member in members}
        planned = algorithm.plan(tasks, history)
        # Only now: a checkpoint that was written meanwhile plans these groups again, from the same history.
        self._finished = [one for one in self._finished if one.ordinal not in seen]
        self._planned[step] += len(tasks)
        for name in history.rejected:
            given_up.pop(name, None)
        for request in planned:
            if request.task.id not in of_task:
                raise PluginError(
                    f"algorithm: '{bench.config.algorithm.use}' plans a rollout of the task '{request.task.id}', which "
                    "is not among the tasks that its plan() was called with."
                )
            of_task[request.task.id].requests.append(request)

    async def _roll_out(self, member: TaskGroup) -> None:
        bench, c, ordinal = self._bench, self._bench.config.rollout, member.ordinal
        stage = StageInfo(RL_STAGE, member.step, TRAIN, temperature=c.temperature, top_p=c.top_p, top_k=c.top_k)
        with no_silent_end("A group of rollouts"):  # the trainer would wait for it for ever
            rollouts = await self.spares.run(member.requests, stage)
        self.finished_at = time.monotonic()
        oldest = min((t.policy_version for t in rollouts), default=None)
        if not self._buffer.finish(ordinal, rollouts, oldest):
            bench.store.change((REJECT, [(LATE, trajectory.id) for trajectory in rollouts]))
            del self._leaving[ordinal]
            return
        groups = frozenset(request.group for request in member.requests)
        given_up = bench.rollouts.given_up
        if any(given_up[name][DIVERGED] for name in groups & given_up.keys()):
            self._diverged.add(ordinal)
        if self._is_replaced(rollouts):
            self._buffer.drop(ordinal)
            del self._admitted[ordinal]
            self._diverged.discard(ordinal)
            self.replaced_tokens += sum(trajectory.sampled_tokens for trajectory in rollouts)
            rollouts = []
            self._room.set()
        self._finished.append(FinishedGroup(ordinal, rollouts, groups))
        self.changed.set()

    def _is_replaced(self, rollouts: Sequence[Trajectory]) -> bool:
        """Return whether a finished group is even and gives way to another one."""
        if not rollouts or not is_even(rollouts):
            return False
        self._even += 1
        replaced = self._replaced < self._config.resample_even_groups
        self._replaced += replaced
        return replaced
