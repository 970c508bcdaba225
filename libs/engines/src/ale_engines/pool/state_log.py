"""Which state each member of a pool was in and when, for the timeline of `ale report`.

The pool emits an event `engine_states` when it has loaded new weights, and when it is closed. Its `engines` are the
members that were there since the event before: `name`, `place`, and `spans`, each a state (`member.State`) with its
beginning and end in Unix time. A cluster logs its rollout workers in the same form.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ale_engines.pool.member import State
from ale_engines.pool.members import Members

STATES_EVENT = "engine_states"
"""The kind of the event."""
Key = tuple[str, str]
"""Name and place: one that is started again at another place is listed for both."""


def read_states(members: Members) -> dict[Key, str]:
    """Return the state of each member that has a model."""
    listed = (member for member in members if member.state is not State.EMPTY)
    return {(member.name, member.replica.place): member.state for member in listed}


class StateLog:
    """`read` returns the states as they are now; call `look` after each change."""

    def __init__(self, read: Callable[[], Mapping[Key, str]], clock: Callable[[], float] = time.time) -> None:
        self._read, self._clock = read, clock
        self._now: dict[Key, tuple[str, float]] = {}
        """Each state, and since when."""
        self._ended: dict[Key, list[tuple[str, float, float]]] = {}

    def look(self) -> None:
        """End the span of each member whose state is another one, and begin its next one."""
        now, states = self._clock(), self._read()
        for key in [key for key, (state, _) in self._now.items() if states.get(key) != state]:
            self._end(key, now)
        self._now = {key: self._now.get(key, (state, now)) for key, state in states.items()}

    def _end(self, key: Key, now: float) -> str:
        state, began = self._now.pop(key)
        self._ended.setdefault(key, []).append((str(state), round(began, 4), round(now, 4)))
        return state

    def take(self) -> list[dict[str, Any]]:
        """Return the members of the event, up to now; the next call goes on from here."""
        self.look()
        now = self._clock()
        order = {name: number for number, (name, _) in enumerate(self._now)}
        self._now = {key: (self._end(key, now), now) for key in [*self._now]}
        ended, self._ended = self._ended, {}
        found = sorted(
            ended.items(), key=lambda one: order.get(one[0][0], len(order))
        )  # those that have left come last
        return [{"name": name, "place": place, "spans": spans} for (name, place), spans in found]
