"""Who gets which sandbox of a pool: the places of its sandboxes, and who waits for one. Nothing is started or stopped here.

Requests are served in their order: each takes an idle sandbox of its kind, or waits for one that is just being reset, which is
sooner there than a new one; else a free place for a new one; else it has the sandbox stopped that has been idle longest.
Only where none of these is to be had does everybody wait.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ale.specs.sandbox import Sandbox, SandboxSpec

State = Literal["starting", "warming", "idle", "lent", "resetting", "stopping"]
RESET_S = 0.5
"""A reset that has taken so long is not waited for where a new sandbox may be started."""
RECENT_KINDS = 8
"""Of so many kinds it is known that they were asked for lately: of these, warm sandboxes are kept."""


@dataclass(eq=False)
class Kind:
    """Sandboxes that can stand in for each other; `spec` is what they are reset to."""

    spec: SandboxSpec
    key: str
    failures: int = 0
    retry_at: float = 0.0
    """When a warm one may be tried again (`time.monotonic`)."""


@dataclass(eq=False)
class Slot:
    """The place of one sandbox, from before its start until its stop has ended."""

    kind: Kind
    reusable: bool
    state: State = "starting"
    sandbox: Sandbox | None = None
    uses: int = 0
    since: float = 0.0
    """When it became idle, or its reset began (`time.monotonic`)."""

    @property
    def box(self) -> Sandbox:
        """The sandbox, once it has started."""
        assert self.sandbox is not None
        return self.sandbox


@dataclass(eq=False)
class Request:
    """Somebody who waits for a slot: one with a warm sandbox, if it may be a used one, or an empty one."""

    kind: Kind
    reusable: bool
    slot: asyncio.Future[Slot]


class Slots:
    """All slots and all who wait. `evict` is called with an idle slot that has to make room."""

    def __init__(self, most: int | None, starts_at_once: int, evict: Callable[[Slot], None]) -> None:
        self.most, self.starts_at_once, self.evict = most, starts_at_once, evict
        self.all: set[Slot] = set()
        self.waiting: deque[Request] = deque()
        self.kinds: dict[str, Kind] = {}
        """The recent ones by key, the one that was asked for last at the end."""
        self.changed = asyncio.Event()
        """Set whenever a slot may have come free."""
        self._timer: asyncio.TimerHandle | None = None

    def kind_of(self, spec: SandboxSpec) -> Kind:
        """The kind of a spec; it counts as asked for, but for one with a name of its own, which no other can stand in for."""
        bare = spec.model_copy(update={"id": None, "env": {}, "files": {}, "labels": {}})
        key = bare.model_dump_json()
        if spec.id is not None:
            return Kind(bare, key)
        kind = self.kinds.pop(key, None) or Kind(bare, key)
        self.kinds[key] = kind
        if len(self.kinds) > RECENT_KINDS:
            del self.kinds[next(iter(self.kinds))]
        return kind

    def new(self, kind: Kind, reusable: bool, state: State) -> Slot:
        """A slot more."""
        slot = Slot(kind, reusable, state)
        self.all.add(slot)
        return slot

    def gone(self, slot: Slot) -> None:
        """A slot less."""
        self.all.discard(slot)
        self.serve()

    def within(self, *states: State) -> Iterator[Slot]:
        """The slots in these states."""
        return (slot for slot in self.all if slot.state in states)

    def states(self) -> Counter[State]:
        """How many slots are in which state."""
        return Counter(slot.state for slot in self.all)

    @property
    def full(self) -> bool:
        """Whether there may be no more."""
        return self.most is not None and len(self.all) >= self.most

    @property
    def may_start(self) -> bool:
        """Whether one more may be started now."""
        return not self.full and sum(1 for _ in self.within("starting", "warming")) < self.starts_at_once

    def serve(self) -> None:
        """Give slots to those who wait; called whenever one may have come free."""
        idle: dict[str, list[Slot]] = {}
        for slot in sorted(self.within("idle"), key=lambda slot: slot.since):
            idle.setdefault(slot.kind.key, []).append(slot)
        soon = time.monotonic() - RESET_S
        resetting = Counter(slot.kind.key for slot in self.within("resetting") if slot.since > soon)
        stopping = self.states()["stopping"]
        for request in [request for request in self.waiting if not request.slot.done()]:
            if request.reusable and idle.get(request.kind.key):
                slot = idle[request.kind.key].pop()  # used last, so that those which nobody needs grow old
                slot.state = "lent"
                request.slot.set_result(slot)
            elif request.reusable and resetting[request.kind.key]:
                resetting[request.kind.key] -= 1
                self.look_again()
            elif self.may_start:
                request.slot.set_result(self.new(request.kind, request.reusable, "starting"))
            elif not any(idle.values()) and not resetting.total():
                break
            elif self.full and stopping:
                stopping -= 1  # that one's place is theirs
            elif self.full and any(idle.values()):
                oldest = min((slots[0] for slots in idle.values() if slots), key=lambda slot: slot.since)
                idle[oldest.kind.key].remove(oldest)
                self.evict(oldest)
        self.changed.set()

    def look_again(self) -> None:
        """Serve those who wait for a reset once it has taken too long."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RESET_S, self._time_is_up)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _time_is_up(self) -> None:
        self._timer = None
        self.serve()
