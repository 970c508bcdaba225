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
class Place:
    """A replica as the router knows it."""

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
    """It remembers each session's home and chooses the place of the next request. The caller counts `Place.active`."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self._homes: OrderedDict[str, Place] = OrderedDict()
        self._sessions: Counter[Place] = Counter()

    def choose(self, session: str, version: int = 0) -> Place | None:
        """Return the place for a request of a session; None while no place of at least this version is free.

        Requests without a session (an empty name) have no home."""
        free = [place for place in self.places if place.free and place.version >= version]
        if not free:
            return None
        home = self._homes.get(session)
        if home is None or home not in free or home.active >= self.bound(home):
            home = min(free, key=lambda place: (place.active / place.slots, self._sessions[place] / place.slots))
        if session:
            self._remember(session, home)
        return home

    def bound(self, place: Place) -> int:
        """Return how many requests a serving place may have once one more request runs."""
        serving = [each for each in self.places if each.serving]
        running, slots = sum(each.active for each in serving), sum(each.slots for each in serving)
        return min(place.slots, math.ceil(SHARE * (running + 1) * place.slots / slots))

    def prefers_waiting(self, session: str) -> bool:
        """Return whether a session has a home that serves, but has no slot free at the moment."""
        home = self._homes.get(session)
        return home is not None and home.serving and not home.free

    def forget(self, place: Place) -> None:
        """Forget the sessions of a place, because its cache is lost."""
        for session in [session for session, home in self._homes.items() if home is place]:
            del self._homes[session]
        del self._sessions[place]

    def _remember(self, session: str, place: Place) -> None:
        if (before := self._homes.pop(session, None)) is not None:
            self._sessions[before] -= 1
        self._homes[session] = place
        self._sessions[place] += 1
        if len(self._homes) > REMEMBERED * sum(each.slots for each in self.places):
            _, oldest = self._homes.popitem(last=False)
            self._sessions[oldest] -= 1
