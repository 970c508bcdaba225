"""Which replica serves a request: the one that served its session before, as long as that has no more than its share.

1. A session's prefix lies in the cache of the replica that served it last, its *home*. A request goes there if a slot
   is free and the replica stays within its share of what runs: `SHARE` times the mean by slots, rounded up. Consistent
   hashing with bounded loads has the same bound (Mirrokni, Thorup, Zadimoghaddam: arXiv 1608.01350).
2. Every other request goes to the replica with the smallest part of its slots in use; of several, to the one that is
   home to the fewest sessions. It becomes the session's home.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from dataclasses import dataclass

SHARE = 1.25
"""How much of its mean load a replica may carry before its sessions go to others."""
REMEMBERED = 64
"""Homes that are remembered for each slot; the session that has been idle longest is forgotten first."""


@dataclass(eq=False)
class Target:
    """A replica of an engine, or a rollout worker, as the router knows it."""

    name: str
    slots: int
    """How many requests it samples at the same time."""
    active: int = 0
    """How many it samples now."""
    serving: bool = False
    """Whether it may be given requests."""
    version: int = 0
    """The version of its weights."""

    @property
    def free(self) -> bool:
        """Whether it can take a request now."""
        return self.serving and self.active < self.slots


class Router:
    """Remembers each session's home and chooses the target of the next request. The caller counts `Target.active`."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self._homes: OrderedDict[str, Target] = OrderedDict()
        self._sessions: Counter[Target] = Counter()

    def choose(self, session: str, version: int = 0) -> Target | None:
        """Return the target for a request of a session; None while no target of at least this version is free.

        Requests without a session (an empty name) have no home."""
        free = [target for target in self.targets if target.free and target.version >= version]
        if not free:
            return None
        home = self._homes.get(session)
        if home is None or home not in free or home.active >= self.bound(home):
            home = min(free, key=lambda target: (target.active / target.slots, self._sessions[target] / target.slots))
        if session:
            self._remember(session, home)
        return home

    def bound(self, target: Target) -> int:
        """Return how many requests a serving target may have once one more request runs."""
        serving = [each for each in self.targets if each.serving]
        running, slots = sum(each.active for each in serving), sum(each.slots for each in serving)
        return min(target.slots, math.ceil(SHARE * (running + 1) * target.slots / slots))

    def prefers_waiting(self, session: str) -> bool:
        """Return whether a session has a home that serves, but has no slot free at the moment."""
        home = self._homes.get(session)
        return home is not None and home.serving and not home.free

    def forget(self, target: Target) -> None:
        """Forget the sessions of a target, because its cache is lost."""
        for session in [session for session, home in self._homes.items() if home is target]:
            del self._homes[session]
        del self._sessions[target]

    def _remember(self, session: str, target: Target) -> None:
        if (before := self._homes.pop(session, None)) is not None:
            self._sessions[before] -= 1
        self._homes[session] = target
        self._sessions[target] += 1
        if len(self._homes) > REMEMBERED * sum(each.slots for each in self.targets):
            _, oldest = self._homes.popitem(last=False)
            self._sessions[oldest] -= 1
