"""Which waiting sandbox starts next: by priority, and within a priority by fair shares of namespaces.

1. A higher priority goes first. Within one, each namespace has a line of its own.
2. Each start costs its namespace CPUs over weight on a clock of its own; the namespace whose clock is least is next
   (start-time fair queueing). A namespace that was idle gets no credit for that: its clock is set to the present.
3. Within a line, records of one *shape* ask for the same, and are served in the order in which they came. A record for
   which no worker has room lets records of other shapes, other namespaces and lower priorities pass. `reservations`
   bounds how long it is passed.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping
from itertools import count as counter

from ale_rock.admin.record import Record

Place = Callable[[Record], bool]
MOST_SHAPES = 64
"""Most shapes of one line; records of further shapes share one queue, so that many different requests cost little."""


class Queue:
    """Records that wait."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._shares = shares
        self._levels: dict[int, _Level] = {}
        self._waiting: dict[Record, None] = {}
        self._came = self._left = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, record: Record) -> bool:
        """Put a record at the end of its line; returns whether it is the only one of its shape there."""
        self._came += 1
        record.ticket = self._came
        self._waiting[record] = None
        return self._level(record).push(record)

    def push_first(self, record: Record) -> None:
        """Put back one whose start failed by no fault of its own, before the others of its line."""
        self._came += 1
        record.ticket = self._left
        self._waiting[record] = None
        self._level(record).push(record, first=True)

    def remove(self, record: Record) -> bool:
        """Remove a record; returns whether it waited."""
        if record not in self._waiting:
            return False
        self._left += 1
        del self._waiting[record]  # its entry in the line is dropped when it comes to the front
        return True

    def waiting(self) -> Collection[Record]:
        """Return those that wait."""
        return self._waiting.keys()

    def place_of(self, record: Record) -> int:
        """Return about how many records start before this one, itself included, as if there were one line for all."""
        return max(1, record.ticket - self._left) if record in self._waiting else 0

    def _level(self, record: Record) -> _Level:
        level = self._levels.get(record.priority)
        if level is None:
            level = self._levels[record.priority] = _Level(self._waiting, self._shares)
        return level

    def dispatch(self, place: Place) -> list[Record]:
        """Start what can be started: `place` tries one record and returns whether it found room. Returns the first
        record of each line that found none, in the order in which they are next."""

        def count(record: Record) -> bool:
            placed = place(record)
            self._left += placed
            return placed

        stuck: list[Record] = []
        for priority in sorted(self._levels, reverse=True):
            level = self._levels[priority]
            stuck += level.dispatch(count)
            if not level:
                del self._levels[priority]
        return stuck


class _Level:
    """The lines of one priority."""

    def __init__(self, waiting: dict[Record, None], shares: Mapping[str, float]) -> None:
        self._waiting, self._shares = waiting, shares
        self._lines: dict[str, _Line] = {}
        self._clocks: dict[str, float] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._ties = counter()
        self._now = 0.0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def push(self, record: Record, first: bool = False) -> bool:
        name = record.namespace or ""
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(self._waiting)
            self._clocks[name] = max(self._clocks.get(name, 0.0), self._now)
            heapq.heappush(self._heap, (self._clocks[name], next(self._ties), name))
        return line.push(record, first)

    def dispatch(self, place: Place) -> list[Record]:
        """Return the first record of each line that found no room, in the order in which they were tried."""
        without_room: list[str] = []
        stuck: dict[str, Record] = {}
        tried: dict[str, set[Hashable]] = {}
        while self._heap:
            _, _, name = heapq.heappop(self._heap)
            line, full = self._lines[name], tried.setdefault(name, set())
            for key, record in line.heads(full):
                if place(record):
                    break
                full.add(key)
                stuck.setdefault(name, record)
            else:
                if line:
                    without_room.append(name)
                    continue
                del self._lines[name]
                if self._clocks[name] <= self._now:
                    del self._clocks[name]
                continue
            line.pop(key)
            self._now = max(self._now, self._clocks[name])
            self._clocks[name] += record.need.cpus / self._shares.get(name, 1.0)
            heapq.heappush(self._heap, (self._clocks[name], next(self._ties), name))
        for name in without_room:
            heapq.heappush(self._heap, (self._clocks[name], next(self._ties), name))
        return list(stuck.values())


class _Line:
    """The records of one namespace, by shape."""

    def __init__(self, waiting: dict[Record, None]) -> None:
        self._waiting = waiting
        self._by_shape: dict[Hashable, deque[Record]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_shape)

    def push(self, record: Record, first: bool) -> bool:
        known = record.shape in self._by_shape or len(self._by_shape) < MOST_SHAPES
        same = self._by_shape.setdefault(record.shape if known else None, deque())
        (same.appendleft if first else same.append)(record)
        return len(same) == 1

    def heads(self, without: Collection[Hashable]) -> list[tuple[Hashable, Record]]:
        """Return the first record of each shape, the oldest first; records that wait no longer are dropped."""
        for key, same in list(self._by_shape.items()):
            while same and same[0] not in self._waiting:
                same.popleft()
            if not same:
                del self._by_shape[key]
        heads = [(key, same[0]) for key, same in self._by_shape.items() if key not in without]
        return sorted(heads, key=lambda head: head[1].ticket)

    def pop(self, key: Hashable) -> None:
        """Take out the first of a shape, which found room."""
        self._waiting.pop(self._by_shape[key].popleft(), None)
