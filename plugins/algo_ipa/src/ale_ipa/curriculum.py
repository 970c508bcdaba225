"""The course that a run takes along its experts: which starts each step plans, and what came back from them.

1. `place` gives the planned rollouts of a step their starts. Before that it looks, once, at the rollouts that came back:
   pointers move, lost experts are dropped, and every few steps the policy's own successes become experts.
2. The rollouts of one task from one start form a group. What each group of the last steps was asked for is remembered
   (`placed`): training may lag behind planning.
3. What a failing group imitates reaches up to the next start from which the policy has succeeded: the crucial chunk lies
   before that. For rollback this is the chunk at which the group starts; anchors may have several chunks between them.
4. A rollout whose replay did not reach its start never comes back. After a window of such (`RolloutHistory.lost_replays`),
   without one that got as far, the expert gives way to the task's next one; the last one is cut short, halfway between what
   came through and what was lost, and dropped when nothing is left of it. What is lost for another reason says
   nothing about the expert.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ale.specs.algorithm import RolloutHistory, RolloutRequest
from ale.trajectory import Trajectory
from ale_ipa.experts import ExpertStore, chunk_count
from ale_ipa.settings import StartSettings
from ale_ipa.starts import Pointer, anchors, judge, spread
from ale_policy_loss.groups import any_passed, trusted

KEPT_STEPS = 32
"""Steps for which it is remembered where the rollouts of a group started."""


@dataclass(frozen=True, slots=True)
class Placed:
    """What a group of rollouts was asked for: a task from `start`, in `step`."""

    task_id: str
    step: int
    expert: Trajectory
    start: int
    imitated: int
    """How many of the expert's chunks are imitated where nothing from this start passes."""


class Curriculum:
    """Starts of rollouts from step to step. `most` is how many different starts a group can have."""

    def __init__(self, settings: StartSettings, most: int, event: Callable[..., None]) -> None:
        self._settings = settings
        self._most = most
        self._event = event
        self._store = ExpertStore(settings.refresh_every)
        self._pointers: dict[str, Pointer] = {}
        self._lost: dict[str, Counter[int]] = defaultdict(Counter)
        """By expert: lost replays by the start that they did not reach."""
        self._counted = -1
        """The step whose lost replays were counted last."""
        self._reached: dict[str, int] = {}
        """By expert: the farthest start that a replay reached."""
        self._farthest: dict[str, int] = {}
        """By expert that was cut short: the farthest start that is still asked for."""
        self._mastered: dict[str, dict[int, bool]] = defaultdict(dict)
        """By expert: whether anything passed when a start was last tried."""
        self._seen: set[str] = set()
        self.placed: dict[str, Placed] = {}
        """By group: those that start on an expert's path."""

    def place(self, requests: Sequence[RolloutRequest], history: RolloutHistory) -> list[RolloutRequest]:
        """The same rollouts, those of tasks with an expert in groups of one start each; as they are in a run that has none.

        The same requests and history give the same again.
        """
        self._store.learn(history.experts)
        if not self._store.tasks:
            return list(requests)
        self._observe(history)
        out: list[RolloutRequest] = []
        for group, members in groupby(requests, key=lambda request: request.group):
            out += self._place_group(group, list(members), history)
        self.placed = {g: p for g, p in self.placed.items() if p.step > history.step - KEPT_STEPS}
        return out

    def metrics(self) -> dict[str, float]:
        """Nothing before an expert is known. `experts`: tasks that have one; `start_chunk_pointer`: chunks replayed, mean
        over the pointers of tasks."""
        tasks = self._store.tasks
        out = {"experts": float(sum(self._store.of(task_id) is not None for task_id in tasks))} if tasks else {}
        if self._pointers:
            out["start_chunk_pointer"] = sum(p.start for p in self._pointers.values()) / len(self._pointers)
        return out

    def _place_group(self, group: str, members: list[RolloutRequest], history: RolloutHistory) -> list[RolloutRequest]:
        task_id = members[0].task.id
        expert = self._store.of(task_id)
        if expert is None:
            self._pointers.pop(task_id, None)
            return members
        starts = spread(self._starts(task_id, expert, history), len(members))
        for start in dict.fromkeys(starts):
            name = f"{group}.k{start + 1}"
            later = [s for s, passed in self._mastered[expert.id].items() if passed and s > start]
            self.placed[name] = Placed(task_id, history.step, expert, start, min(later, default=start + 1))
        return [
            replace(r, group=f"{group}.k{start + 1}", start_chunk=start, expert=expert if start else None)
            for r, start in zip(members, starts, strict=True)
        ]

    def _starts(self, task_id: str, expert: Trajectory, history: RolloutHistory) -> list[int]:
        if self._settings.start == "rollback":
            return [self._pointer(task_id, expert).start]
        rng = random.Random(f"{history.seed}.{history.step}.{task_id}")
        return anchors(self._chunks(expert), min(self._settings.anchors, self._most), self._settings.anchor_choice, rng)

    def _chunks(self, expert: Trajectory) -> int:
        """How many of its chunks, from the beginning, rollouts may start at."""
        return min(chunk_count(expert), self._farthest.get(expert.id, chunk_count(expert)) + 1)

    def _pointer(self, task_id: str, expert: Trajectory) -> Pointer:
        pointer, chunks = self._pointers.get(task_id), chunk_count(expert)
        if pointer is None or (pointer.expert != expert.id and chunks > pointer.chunks):
            pointer = Pointer.at_last(expert.id, chunks)
        elif pointer.expert != expert.id:
            pointer = pointer.onto(expert.id, chunks)
        if pointer.start >= (usable := self._chunks(expert)) > 0:
            pointer = Pointer(expert.id, chunks, usable - 1)
        self._pointers[task_id] = pointer
        return pointer

    def _observe(self, history: RolloutHistory) -> None:
        fresh = [t for t in trusted(history.trajectories) if t.id not in self._seen]
        self._seen = {t.id for t in history.trajectories}
        self._count_lost(fresh, history)
        self._look_where_it_succeeds(fresh)
        if self._settings.start == "rollback":
            self._move_pointers(fresh, history.step)
        self._store.note(fresh)
        for taken in self._store.refresh(history.step):
            self._event(
                "expert_refreshed", step=history.step, task=taken.expert.task_id, expert=taken.expert.id,
                chunks=chunk_count(taken.expert), before=taken.chunks_before,
            )  # fmt: skip

    def _look_where_it_succeeds(self, fresh: Sequence[Trajectory]) -> None:
        tried: dict[tuple[str, int], dict[int, bool]] = defaultdict(lambda: defaultdict(bool))
        for group, passed in any_passed(fresh).items():
            if (asked := self.placed.get(group)) is not None:
                tried[asked.expert.id, asked.start][asked.step] |= passed  # a step may try a start with several groups
        for (expert_id, start), steps in tried.items():
            self._mastered[expert_id][start] = steps[max(steps)]

    def _count_lost(self, fresh: Sequence[Trajectory], history: RolloutHistory) -> None:
        came = {t.group for t in fresh}
        news = {} if history.step == self._counted else history.lost_replays
        self._counted = history.step
        for name in self.placed.keys() & (news.keys() - came):
            asked = self.placed[name]
            if asked.expert.id not in self._store.dropped:
                self._lost[asked.expert.id][asked.start] += news[name]
        for name in self.placed.keys() & came:
            asked = self.placed[name]
            self._reached[asked.expert.id] = max(asked.start, self._reached.get(asked.expert.id, 0))
            # A replay that got this far gets as far as any earlier start.
            lost = self._lost[asked.expert.id]
            for start in [s for s in lost if s <= asked.start]:
                del lost[start]
        self._lost = defaultdict(Counter, {expert_id: lost for expert_id, lost in self._lost.items() if lost})
        for expert_id, lost in sorted(self._lost.items()):
            if lost.total() >= self._settings.window:
                self._cut(expert_id, lost, history.step)

    def _cut(self, expert_id: str, lost: Counter[int], step: int) -> None:
        """Ask no more for starts that replays of this expert do not reach."""
        del self._lost[expert_id]
        task_id = next(p.task_id for p in self.placed.values() if p.expert.id == expert_id)
        first, reached = min(lost), self._reached.get(expert_id, 0)
        farthest = (first + reached) // 2 if reached < first else first - 1
        where = {"step": step, "task": task_id, "expert": expert_id, "lost": lost.total()}
        if farthest and len(self._store.usable(task_id)) == 1:
            self._farthest[expert_id] = farthest
            self._event("expert_cut", **where, farthest=farthest)
        else:
            self._store.drop(expert_id)
            self._mastered.pop(expert_id, None)
            pointer = self._pointers.get(task_id)
            if pointer is not None and pointer.expert == expert_id:
                del self._pointers[task_id]
            self._event("expert_dropped", **where)

    def _move_pointers(self, fresh: Sequence[Trajectory], step: int) -> None:
        outcomes: dict[str, list[bool]] = defaultdict(list)
        for t in fresh:
            asked, pointer = self.placed.get(t.group), self._pointers.get(t.task_id)
            if asked and pointer and (asked.expert.id, asked.start) == (pointer.expert, pointer.start):
                outcomes[t.task_id].append(t.passed)
        s = self._settings
        for task_id, passed in outcomes.items():
            judged = judge(self._pointers[task_id], passed, s.window, s.advance_at, s.fork_drop)
            pointer = self._pointers[task_id] = judged.pointer
            where = {"step": step, "task": task_id, "expert": pointer.expert}
            if (fork := judged.fork) is not None:
                self._event("crucial_fork", **where, chunk=fork.chunk, before=fork.before, after=fork.after)
            if judged.left_at is not None:
                self._event("rollback", **where, chunk=pointer.start + 1, success=judged.left_at)
