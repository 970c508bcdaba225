"""Which state each member of a pool was in and when, for the timeline of `ale report`.

The pool emits an event `engine_states` when it has loaded new weights, and when it is closed. Its `engines` are the
members that were there since the event before: `name`, `place`, and `spans`, each a state (`member.State`) with its
beginning and end in Unix time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ale_engines.member import State
from ale_engines.members import Members

STATES_EVENT = "engine_states"
"""The kind of the event."""
Key = tuple[str, str]
"""Name and place: one that is started again at another place is listed for both."""


class StateLog:
    """It listens to the members. One that has no model yet is not listed."""

    def __init__(self, members: Members, clock: Callable[[], float] = time.time) -> None:
        self._members, self._clock = members, clock
        self._now: dict[Key, tuple[State, float]] = {}
        """The state of each member, and since when."""
        self._ended: dict[Key, list[tuple[str, float, float]]] = {}
        members.listeners.append(self._look)

    def _look(self) -> None:
        """End the span of each member whose state is another one, and begin its next one."""
        now = self._clock()
        listed = (member for member in self._members if member.state is not State.EMPTY)
        states = {(member.name, member.replica.place): member.state for member in listed}
        for key in [key for key, (state, _) in self._now.items() if states.get(key) is not state]:
            self._end(key, now)
        self._now = {key: self._now.get(key, (state, now)) for key, state in states.items()}

    def _end(self, key: Key, now: float) -> State:
        state, began = self._now.pop(key)
        self._ended.setdefault(key, []).append((str(state), round(began, 4), round(now, 4)))
        return state

    def take(self) -> list[dict[str, Any]]:
        """Return the members of the event, up to now; the next call goes on from here."""
        now = self._clock()
        self._now = {key: (self._end(key, now), now) for key in [*self._now]}
        ended, self._ended = self._ended, {}
        return [{"name": name, "place": place, "spans": spans} for (name, place), spans in ended.items()]
