"""The curriculum of a run with experts chooses the starts of each step's rollouts and learns from their results.

1. `place` gives the planned rollouts of a step their starts. Before that it reads each finished rollout once: it moves
   pointers, drops experts that cannot be replayed, and every few steps makes the policy's own successes experts.
2. The rollouts of one task from one start form a group. `placed` remembers the start of each group of the last steps,
   because training may lag behind planning.
3. A failing group imitates the expert's chunks up to the next start from which the policy has succeeded, because the
   crucial fork lies before that start. With rollback this is one chunk, the one at which the group starts; between
   two anchors there may be several chunks.
4. A rollout whose replay did not reach its start is lost (`REPLAY_LOST` in `RolloutHistory.rejected`). If a window of
   rollouts is lost and none gets that far, the task's next expert replaces this one. The last expert is cut to halfway
   between the reached and the lost starts, and dropped when nothing is left of it. Rollouts that were rejected for
   other reasons do not count.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from ale.specs.algorithm import RolloutHistory, RolloutRequest
from ale.trajectory import Trajectory
from ale_ipa.experts import ExpertStore, SavedTrajectories, chunk_count
from ale_ipa.settings import StartSettings
from ale_ipa.start_selection import Pointer, anchors, judge, spread
from ale_torch.losses.groups import any_passed, select_trusted
from ale_train.starts import REPLAY_LOST, ExpertReplay, ExpertStates

NEVER = (-1, 0)
"""The step and place of no plan."""
KEPT_STEPS = 32
"""The curriculum remembers the starts of groups for this many steps."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The start of a group of rollouts: it attempts a task from `start`, in the step `step`."""

    task_id: str
    step: int
    expert: Trajectory
    start: int
    imitated: int
    """How many of the expert's chunks are imitated if no rollout from this start passes."""


class Curriculum:
    """Chooses the starts of rollouts, step by step. A task has at most `most` different starts in a step."""

    def __init__(
        self, settings: StartSettings, most: int, event: Callable[..., None], states: ExpertStates | None = None
    ) -> None:
        self._settings = settings
        self._most = most
        self._event = event
        self._states = states
        self.experts = ExpertStore(settings.refresh_every)
        self._pointers: dict[str, Pointer] = {}
        self._lost: dict[str, Counter[int]] = defaultdict(Counter)
        """For each expert, the number of lost replays by the start that they did not reach."""
        self._counted = NEVER
        """Step and place of the plan whose lost replays were counted last."""
        self._reached: dict[str, int] = {}
        """For each expert, the farthest start that a replay has reached."""
        self._farthest: dict[str, int] = {}
        """For each expert that was cut, the farthest start that rollouts may still have."""
        self._mastered: dict[str, dict[int, bool]] = defaultdict(dict)
        """For each expert and start, whether any rollout passed when that start was last tried."""
        self._seen: set[str] = set()
        self.placed: dict[str, Placed] = {}
        """The start of each group that starts on an expert's path."""

    def place(self, requests: Sequence[RolloutRequest], history: RolloutHistory) -> list[RolloutRequest]:
        """Return the same rollouts with their starts: those of a task with an expert are divided into groups that share
        a start. In a run without experts, the rollouts stay as they are.

        The same requests and history always give the same result.
        """
        if not self.experts.tasks:
            return list(requests)
        self._observe(history)
        out: list[RolloutRequest] = []
        for group, members in groupby(requests, key=lambda request: request.group):
            out += self._place_group(group, list(members), history)
        self.placed = {g: p for g, p in self.placed.items() if p.step > history.step - KEPT_STEPS}
        return out

    def metrics(self) -> dict[str, float]:
        """Return the metrics; there are none in a run without experts. `experts` is the number of tasks that have one;
        `start_chunk_pointer` is the number of replayed chunks, as a mean over the pointers of the tasks."""
        if self._settings.experts is None:
            return {}
        out = {"experts": float(sum(self.experts.of(task_id) is not None for task_id in self.experts.tasks))}
        if self._pointers:
            out["start_chunk_pointer"] = sum(p.start for p in self._pointers.values()) / len(self._pointers)
        return out

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        table = SavedTrajectories()
        return {
            "experts": self.experts.state(table),
            "pointers": {task_id: asdict(pointer) for task_id, pointer in self._pointers.items()},
            "lost": {expert_id: list(lost.items()) for expert_id, lost in self._lost.items()},
            "counted": list(self._counted),
            "reached": dict(self._reached),
            "farthest": dict(self._farthest),
            "mastered": {expert_id: list(starts.items()) for expert_id, starts in self._mastered.items()},
            "seen": sorted(self._seen),
            "placed": {
                group: [p.task_id, p.step, table.number(p.expert), p.start, p.imitated]
                for group, p in self.placed.items()
            },
            "trajectories": table.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace this state by an earlier one."""
        table = SavedTrajectories.of(state["trajectories"])
        self.experts.restore(state["experts"], table)
        self._pointers = {
            task_id: Pointer(**{**pointer, "outcomes": tuple(pointer["outcomes"])})
            for task_id, pointer in state["pointers"].items()
        }
        self._lost = defaultdict(Counter, {expert_id: Counter(dict(lost)) for expert_id, lost in state["lost"].items()})
        step, place = state["counted"]
        self._counted = (step, place)
        self._reached = dict(state["reached"])
        self._farthest = dict(state["farthest"])
        self._mastered = defaultdict(dict, {expert_id: dict(starts) for expert_id, starts in state["mastered"].items()})
        self._seen = set(state["seen"])
        self.placed = {
            group: Placed(task_id=task_id, step=step, expert=table.trajectories[expert], start=start, imitated=imitated)
            for group, (task_id, step, expert, start, imitated) in state["placed"].items()
        }

    @staticmethod
    def renumber(state: Mapping[str, Any], steps: int) -> dict[str, Any]:
        """Return the part of a state that holds steps for a run that counts them anew after so many. A start of an
        earlier step stays known for the rollouts that were not looked at yet, until a group gets the same name."""
        experts = dict(state["experts"])
        if experts["refreshed_at"] is not None:
            experts["refreshed_at"] -= steps
        placed = {group: [task_id, step - steps, *rest] for group, (task_id, step, *rest) in state["placed"].items()}
        return {"experts": experts, "placed": placed, "counted": list(NEVER)}

    def _place_group(self, group: str, members: list[RolloutRequest], history: RolloutHistory) -> list[RolloutRequest]:
        task_id = members[0].task.id
        expert = self.experts.of(task_id)
        if expert is None:
            self._pointers.pop(task_id, None)
            return members
        starts = spread(self._starts(task_id, expert, history), len(members))
        for start in dict.fromkeys(starts):
            name = f"{group}.k{start + 1}"
            later = [s for s, passed in self._mastered[expert.id].items() if passed and s > start]
            self.placed[name] = Placed(
                task_id=task_id, step=history.step, expert=expert, start=start, imitated=min(later, default=start + 1)
            )
        return [
            replace(r, group=f"{group}.k{start + 1}", start=self._start(expert, start))
            for r, start in zip(members, starts, strict=True)
        ]

    def _start(self, expert: Trajectory, chunks: int) -> ExpertReplay | None:
        if not chunks:
            return None
        ignore = self._settings.experts.replay_ignore if self._settings.experts else ()
        return ExpertReplay(expert, chunks, ignore, self._states)

    def _starts(self, task_id: str, expert: Trajectory, history: RolloutHistory) -> list[int]:
        if self._settings.start == "rollback":
            return [self._pointer(task_id, expert).start]
        rng = random.Random(f"{history.seed}.{history.step}.{task_id}")
        return anchors(self._chunks(expert), min(self._settings.anchors, self._most), self._settings.anchor_choice, rng)

    def _chunks(self, expert: Trajectory) -> int:
        """Return how many chunks of the expert, counted from the beginning, a rollout may start at."""
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
        fresh = [t for t in select_trusted(history.trajectories) if t.id not in self._seen]
        self._seen = {t.id for t in history.trajectories}
        self._count_lost(fresh, history)
        self._look_where_it_succeeds(fresh)
        if self._settings.start == "rollback":
            self._move_pointers(fresh, history.step)
        self.experts.note(fresh)
        for taken in self.experts.refresh(history.step):
            self._event(
                "expert_refreshed",
                step=history.step,
                task=taken.expert.task_id,
                expert=taken.expert.id,
                chunks=chunk_count(taken.expert),
                before=taken.chunks_before,
            )

    def _look_where_it_succeeds(self, fresh: Sequence[Trajectory]) -> None:
        tried: dict[tuple[str, int], dict[int, bool]] = defaultdict(lambda: defaultdict(bool))
        for group, passed in any_passed(fresh).items():
            if (asked := self.placed.get(group)) is not None:
                tried[asked.expert.id, asked.start][asked.step] |= passed  # several groups of a step may have one start
        for (expert_id, start), steps in tried.items():
            self._mastered[expert_id][start] = steps[max(steps)]

    def _count_lost(self, fresh: Sequence[Trajectory], history: RolloutHistory) -> None:
        came = {t.group for t in fresh}
        given_up = {} if (history.step, history.place) == self._counted else history.rejected
        news = {group: kinds[REPLAY_LOST] for group, kinds in given_up.items() if kinds.get(REPLAY_LOST)}
        self._counted = (history.step, history.place)
        for name in self.placed.keys() & (news.keys() - came):
            asked = self.placed[name]
            if asked.expert.id not in self.experts.dropped:
                self._lost[asked.expert.id][asked.start] += news[name]
        for name in self.placed.keys() & came:
            asked = self.placed[name]
            self._reached[asked.expert.id] = max(asked.start, self._reached.get(asked.expert.id, 0))
            # A replay that reached this start also reached every earlier one.
            lost = self._lost[asked.expert.id]
            for start in [s for s in lost if s <= asked.start]:
                del lost[start]
        self._lost = defaultdict(Counter, {expert_id: lost for expert_id, lost in self._lost.items() if lost})
        for expert_id, lost in sorted(self._lost.items()):
            if lost.total() >= self._settings.window:
                self._cut(expert_id, lost, history.step)

    def _cut(self, expert_id: str, lost: Counter[int], step: int) -> None:
        """Stop asking for starts that replays of this expert do not reach."""
        del self._lost[expert_id]
        task_id = next(p.task_id for p in self.placed.values() if p.expert.id == expert_id)
        first, reached = min(lost), self._reached.get(expert_id, 0)
        farthest = (first + reached) // 2 if reached < first else first - 1
        where = {"step": step, "task": task_id, "expert": expert_id, "lost": lost.total()}
        if farthest and len(self.experts.usable(task_id)) == 1:
            self._farthest[expert_id] = farthest
            self._event("expert_cut", **where, farthest=farthest)
        else:
            self.experts.drop(expert_id)
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
