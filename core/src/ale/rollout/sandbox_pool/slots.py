"""Assigns the slots of a pool to requests, in order. Nothing is started or stopped here.

A request takes an idle sandbox of its kind; or it waits for one that is being reset, which takes less time than a new
one; or it takes a free slot for a new sandbox; or the sandbox that has been idle longest is stopped to make room. If
none of these is possible, all requests wait."""

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
"""A request does not wait longer than this for a reset if a new sandbox may be started."""
RECENT_KINDS = 8
"""Warm sandboxes are kept of this many most recently requested kinds."""


@dataclass(eq=False)
class SandboxKind:
    """Interchangeable sandboxes; `spec` is what they are reset to."""

    spec: SandboxSpec
    key: str
    failures: int = 0
    retry_at: float = 0.0
    """When the start of a warm one may be tried again (`time.monotonic`)."""


@dataclass(eq=False)
class Slot:
    """The place of one sandbox, from before its start until its stop is complete."""

    kind: SandboxKind
    reusable: bool
    state: State = "starting"
    sandbox: Sandbox | None = None
    uses: int = 0
    since: float = 0.0
    """When it became idle, or its reset began (`time.monotonic`)."""

    @property
    def box(self) -> Sandbox:
        """Return the started sandbox."""
        assert self.sandbox is not None
        return self.sandbox


@dataclass(eq=False)
class SlotRequest:
    """A request that waits for a slot: an empty one, or, if the sandbox may be reused, one with a warm sandbox."""

    kind: SandboxKind
    reusable: bool
    slot: asyncio.Future[Slot]


class Slots:
    """All slots and waiting requests. `evict` is called with an idle slot that has to make room."""

    def __init__(self, most: int | None, starts_at_once: int, evict: Callable[[Slot], None]) -> None:
        self.most, self.starts_at_once, self.evict = most, starts_at_once, evict
        self.all: set[Slot] = set()
        self.waiting: deque[SlotRequest] = deque()
        self.kinds: dict[str, SandboxKind] = {}
        """The recent kinds by key, the latest requested one at the end."""
        self.changed = asyncio.Event()
        """Set whenever a slot may have come free."""
        self._timer: asyncio.TimerHandle | None = None

    def kind_of(self, spec: SandboxSpec) -> SandboxKind:
        """Return the kind of a spec and mark it as recent; a spec with its own id has no reusable kind."""
        bare = spec.model_copy(update={"id": None, "env": {}, "files": {}, "labels": {}})
        key = bare.model_dump_json()
        if spec.id is not None:
            return SandboxKind(bare, key)
        kind = self.kinds.pop(key, None) or SandboxKind(bare, key)
        self.kinds[key] = kind
        if len(self.kinds) > RECENT_KINDS:
            del self.kinds[next(iter(self.kinds))]
        return kind

    def new(self, kind: SandboxKind, reusable: bool, state: State) -> Slot:
        """Add a slot."""
        slot = Slot(kind, reusable, state)
        self.all.add(slot)
        return slot

    def remove_slot(self, slot: Slot) -> None:
        """Remove a slot."""
        self.all.discard(slot)
        self.serve()

    def within(self, *states: State) -> Iterator[Slot]:
        """Yield the slots in these states."""
        return (slot for slot in self.all if slot.state in states)

    def states(self) -> Counter[State]:
        """Count the slots by state."""
        return Counter(slot.state for slot in self.all)

    @property
    def full(self) -> bool:
        """Return whether all slots are taken."""
        return self.most is not None and len(self.all) >= self.most

    @property
    def may_start(self) -> bool:
        """Return whether one more sandbox may be started now."""
        return not self.full and sum(1 for _ in self.within("starting", "warming")) < self.starts_at_once

    def serve(self) -> None:
        """Give slots to waiting requests; called whenever one may have come free."""
        idle: dict[str, list[Slot]] = {}
        for slot in sorted(self.within("idle"), key=lambda slot: slot.since):
            idle.setdefault(slot.kind.key, []).append(slot)
        soon = time.monotonic() - RESET_S
        resetting = Counter(slot.kind.key for slot in self.within("resetting") if slot.since > soon)
        stopping = self.states()["stopping"]
        for request in [request for request in self.waiting if not request.slot.done()]:
            if request.reusable and idle.get(request.kind.key):
                slot = idle[request.kind.key].pop()  # the most recently used one, so that unneeded ones grow old
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
                stopping -= 1  # this request gets the place of the sandbox being stopped
            elif self.full and any(idle.values()):
                oldest = min((slots[0] for slots in idle.values() if slots), key=lambda slot: slot.since)
                idle[oldest.kind.key].remove(oldest)
                self.evict(oldest)
        self.changed.set()

    def look_again(self) -> None:
        """Serve the requests that wait for a reset again when it takes too long."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RESET_S, self._time_is_up)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _time_is_up(self) -> None:
        self._timer = None
        self.serve()
