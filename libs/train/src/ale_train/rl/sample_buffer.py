"""The sample buffer: which groups are open, which of them the trainer may take, and how many more may be admitted.

1. A *group* is all rollouts of one ordinal, which is the number of a task in the order in which tasks are admitted. It
   is *open* from its admission until it has been trained on or dropped; the batch in training is open, too.
2. At most `(ahead + 1) * batch_size` groups are open. Live objects are counted, so that nothing can leak.
3. A group must be trained on from a version that is at most `async_ratio` newer than the one with which the oldest
   of its rollouts began; that is its *deadline*. Until it has finished, the version at its admission stands for it.
4. A batch has the finished groups with the earliest deadlines, of equals the smallest ordinals. It is taken from
   version v only if afterwards, for each d >= v, at most `batch_size * (d - v)` open groups have a deadline of d or
   before. Otherwise the trainer waits, however old or slow a rollout is: no group is dropped for its age, so that
   long rollouts are trained on as often as short ones.
5. By induction the bound can always be kept, since `ahead <= async_ratio`.
6. `expire` drops unfinished groups for which alone the trainer has waited `patience_s`.

This is pure code: it awaits nothing, and time comes from the clock that it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class OpenGroup(Generic[T]):
    """An open group: its ordinal, the version that its deadline counts from, and its rollouts once it has finished."""

    ordinal: int
    version: int
    rollouts: tuple[T, ...] | None = None
    taken: bool = False

    @property
    def running(self) -> bool:
        """Whether a rollout of the group has not finished."""
        return self.rollouts is None


class SampleBuffer(Generic[T]):
    """Holds the open groups, and decides which of them the trainer may take and how many more may be admitted."""

    def __init__(
        self, batch_size: int, async_ratio: int, ahead: float, patience_s: float, clock: Callable[[], float]
    ) -> None:
        if ahead > async_ratio:
            raise ValueError(f"ahead ({ahead}) must not be above async_ratio ({async_ratio})")
        self._batch_size, self._async_ratio, self._ahead = batch_size, async_ratio, ahead
        self._patience_s, self._clock = patience_s, clock
        self._groups: dict[int, OpenGroup[T]] = {}
        self._waiting_since: float | None = None
        """When the trainer began to wait for groups with early deadlines alone; None while it does not."""

    @property
    def open(self) -> int:
        """The number of open groups."""
        return len(self._groups)

    @property
    def ready(self) -> int:
        """The number of finished groups that have not been taken."""
        return len(self._ready())

    @property
    def room(self) -> int:
        """The number of groups that may be admitted now."""
        return round((self._ahead + 1) * self._batch_size) - self.open

    def groups(self) -> list[OpenGroup[T]]:
        """Return the open groups by ordinal."""
        return [self._groups[ordinal] for ordinal in sorted(self._groups)]

    def admit(self, ordinal: int, version: int) -> None:
        """Open a group; `version` is the engine's now. Raises `ValueError` if there is no room or it is open."""
        if self.room <= 0 or ordinal in self._groups:
            raise ValueError(f"group {ordinal} cannot be admitted: {self.open} groups are open")
        self._groups[ordinal] = OpenGroup(ordinal, version)

    def finish(self, ordinal: int, rollouts: Iterable[T], version: int | None) -> bool:
        """Hand in a group's rollouts; `version` is the oldest with which one of them began, None if there are none.

        Returns whether the group is still open: it is not once it was dropped."""
        group = self._groups.get(ordinal)
        if group is None:
            return False
        group.rollouts = tuple(rollouts)
        group.version = group.version if version is None else max(group.version, version)
        return True

    def drop(self, ordinal: int) -> None:
        """Close a group without training on it."""
        del self._groups[ordinal]

    def take(self, version: int) -> list[OpenGroup[T]] | None:
        """Return the next batch for the trainer, whose weights are `version`, by ordinal; None if it has to wait. The
        groups stay open until `trained`."""
        ready = self._ready()
        if len(ready) < self._batch_size:
            self._waiting_since = None
            return None
        chosen = ready[: self._batch_size]
        if self._overdue(chosen, version):
            self._waiting_since = self._clock() if self._waiting_since is None else self._waiting_since
            return None
        self._waiting_since = None
        for group in chosen:
            group.taken = True
        return sorted(chosen, key=lambda group: group.ordinal)

    def trained(self) -> None:
        """Close the groups that were taken."""
        self._groups = {ordinal: group for ordinal, group in self._groups.items() if not group.taken}

    @property
    def patience_left_s(self) -> float | None:
        """The seconds until `expire` drops a group; None while the trainer does not wait for single groups."""
        if self._waiting_since is None:
            return None
        return max(0.0, self._waiting_since + self._patience_s - self._clock())

    def expire(self, version: int) -> list[OpenGroup[T]]:
        """Drop, once the patience is used up, as many unfinished groups as the trainer needs to go on: those with the
        earliest deadlines. Returns them."""
        if self.patience_left_s != 0.0:
            return []
        late: list[OpenGroup[T]] = []
        while self._overdue(self._ready()[: self._batch_size], version):
            running = [group for group in self._untaken() if group.running]
            late.append(min(running, key=self._urgency))
            self.drop(late[-1].ordinal)
        self._waiting_since = None
        return late

    def _overdue(self, chosen: Iterable[OpenGroup[T]], version: int) -> bool:
        """Return whether, with these groups trained from `version`, the rest could no longer keep its deadlines."""
        left = {id(group) for group in chosen}
        deadlines = sorted(g.version + self._async_ratio for g in self._untaken() if id(g) not in left)
        return any(n > self._batch_size * (deadline - version) for n, deadline in enumerate(deadlines, 1))

    def _ready(self) -> list[OpenGroup[T]]:
        return sorted((g for g in self._untaken() if not g.running), key=self._urgency)

    def _untaken(self) -> list[OpenGroup[T]]:
        return [group for group in self._groups.values() if not group.taken]

    @staticmethod
    def _urgency(group: OpenGroup[T]) -> tuple[int, int]:
        return group.version, group.ordinal
