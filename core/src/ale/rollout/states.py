"""States of experts, kept as snapshots: a rollout that starts behind chunk k of an expert gets a fork of what was there then.

1. Who first wants a state of an expert *walks* there (`walk.py`): one replay in a sandbox, in which a snapshot is taken at every
   start that anybody has asked for. Others who want one of these wait until it is there; no two walk the same expert at once.
2. A walk that meets a fault of infrastructure fails the rollout that made it, which is made anew; the next one walks again.
   Anything else that goes wrong makes starts *unreachable*: they are replayed, now and later.
3. Of more than `most` states those that were used longest ago are removed, and all of them at the end.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from ale.errors import AleError, ConfigError, SandboxError
from ale.rollout.replayed import Call
from ale.specs.sandbox import SandboxProvider, SandboxSpec
from ale.specs.scaffold import Scaffold

log = logging.getLogger("ale.rollout.states")

MOST = 64
"""So many states are kept."""


class Expert(NamedTuple):
    """An expert in the sandboxes of a provider, with the agent of a scaffold."""

    provider: SandboxProvider
    scaffold: Scaffold
    task_id: str
    trajectory_id: str


@dataclass(eq=False)
class State:
    """What a sandbox held when the policy was to go on from an expert's first chunks, and how it came there."""

    expert: Expert
    start: int
    """How many of the expert's chunks come before."""
    snapshot: str
    record: tuple[Call, ...]
    tools: frozenset[str]
    """The tools of the call that is the policy's."""
    users: int = 0
    """How many are just starting a sandbox from it."""

    def fork(self, spec: SandboxSpec) -> SandboxSpec:
        """What to start in the place of `spec`: the task's files are in the snapshot, as the expert left them.

        One that starts in milliseconds has a name of its own, so that no pool keeps it to be used again.
        """
        own = f"ale-fork-{secrets.token_hex(6)}" if "fork" in self.expert.provider.capabilities else None
        return spec.model_copy(update={"id": own, "from_snapshot": self.snapshot, "files": {}})


@dataclass
class Starts:
    """The starts of one expert, by how many of its chunks come before: those that are there, and those that are to be."""

    expert: Expert
    states: dict[int, State] = field(default_factory=dict)
    wanted: set[int] = field(default_factory=set)
    reached: int = 0
    """How many chunks were behind the last walk where a state could be kept for the last time."""
    unreachable: int | None = None
    """Starts from here on are replayed."""
    walking: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def want(self, start: int) -> None:
        """Have the walk make this one too, where it comes by."""
        if start not in self.states and not self.given_up(start):
            self.wanted.add(start)

    def add(self, state: State) -> None:
        """Here it is."""
        self.states[state.start] = state
        self.wanted.discard(state.start)
        self.tell()

    def give_up(self, start: int) -> None:
        """This one and those behind it are not to be had."""
        self.unreachable = min(start, start if self.unreachable is None else self.unreachable)
        self.wanted = {wanted for wanted in self.wanted if wanted < start}
        self.tell()

    def given_up(self, start: int) -> bool:
        """Whether this one is not to be had."""
        return self.unreachable is not None and start >= self.unreachable

    def tell(self) -> None:
        """Wake whoever waits for something to change."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


Walking = Callable[[Starts], Awaitable[None]]
"""Goes along an expert and adds the states that are wanted. Raises the `AleError` for which it does not come to all of them."""


class StartStates:
    """All states of a run. `event` puts what becomes of them into the run's store."""

    def __init__(self, event: Callable[..., None] = lambda kind, **data: None, most: int = MOST) -> None:
        self._event = event
        self._most = most
        self._starts: dict[Expert, Starts] = {}
        self._kept: dict[State, None] = {}
        """The one that was used longest ago comes first."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for state in list(self._kept):
            await self._remove(state)

    def want(self, expert: Expert, start: int) -> None:
        """This state will be asked for."""
        self._starts_of(expert).want(start)

    @asynccontextmanager
    async def lend(self, expert: Expert, start: int, walk: Walking) -> AsyncIterator[State | None]:
        """A state, which stays as long as this is open; None where the expert is to be replayed. Raises `SandboxError`, `ConfigError`."""
        state = await self._found_or_made(expert, start, walk)
        if state is None:
            yield None
            return
        state.users += 1
        self._kept.pop(state, None)
        self._kept[state] = None
        try:
            await self._make_room()
            yield state
        except (ConfigError, SandboxError):
            if state in self._kept and state.snapshot not in await expert.provider.snapshots():
                self._forget(state)
                raise SandboxError(
                    f"The snapshot {state.snapshot} of an expert's state was removed by somebody else."
                ) from None
            raise
        finally:
            state.users -= 1

    def diverged(self, state: State, reason: str) -> None:
        """The agent does not do in a fork what it did on the walk: its rollouts from this expert are replayed from now on."""
        self._give_up(state.expert, 0, reason)

    async def _found_or_made(self, expert: Expert, start: int, walk: Walking) -> State | None:
        starts = self._starts_of(expert)
        while not starts.given_up(start):
            if start in starts.states:
                return starts.states[start]
            starts.want(start)
            if starts.walking:
                await starts.changed.wait()
            else:
                await self._walk(expert, starts, start, walk)
        return None

    async def _walk(self, expert: Expert, starts: Starts, start: int, walk: Walking) -> None:
        """Walk once. Afterwards the start is there, or given up, or was asked for when the walk was past it; or this raises."""
        before, reason, began = set(starts.states), "the agent's calls do not come so far", time.monotonic()
        starts.walking, starts.reached = True, 0
        try:
            await walk(starts)
        except ConfigError:
            raise
        except AleError as error:
            if error.retryable and start not in starts.states:
                raise
            reason = str(error)
        finally:
            made = sorted(starts.states.keys() - before)
            for each in made:
                self._kept.setdefault(starts.states[each])
            starts.walking = False
            starts.tell()
        if made:
            seconds = round(time.monotonic() - began, 3)
            snapshots = [starts.states[each].snapshot for each in made if each in starts.states]
            self._event(
                "start_states_made", expert=expert.trajectory_id, task=expert.task_id, starts=made, snapshots=snapshots,
                seconds=seconds,
            )  # fmt: skip
        if start not in starts.states and start > starts.reached:
            self._give_up(expert, starts.reached + 1, reason)

    def _give_up(self, expert: Expert, start: int, reason: str) -> None:
        if self._starts_of(expert).given_up(start):
            return
        log.info("The expert %s is replayed from start %d on, and not forked: %s", expert.trajectory_id, start, reason)
        self._starts[expert].give_up(start)
        self._event(
            "start_states_given_up", expert=expert.trajectory_id, task=expert.task_id, start=start, reason=reason
        )

    async def _make_room(self) -> None:
        """Remove what was used longest ago."""
        for state in list(self._kept):
            if len(self._kept) <= self._most:
                return
            if not state.users:  # now: others are lent while one is removed
                await self._remove(state)

    def _forget(self, state: State) -> None:
        del self._kept[state]
        starts = self._starts[state.expert]
        del starts.states[state.start]
        if not (starts.states or starts.wanted or starts.walking or starts.unreachable is not None):
            del self._starts[state.expert]

    def _starts_of(self, expert: Expert) -> Starts:
        return self._starts.setdefault(expert, Starts(expert))

    async def _remove(self, state: State) -> None:
        if state not in self._kept:
            return
        self._forget(state)
        try:
            await state.expert.provider.remove_snapshot(state.snapshot)
        except AleError as error:  # of an engine that keeps what a sandbox stands on; it goes with the provider
            log.debug("the snapshot %s stays until its provider is closed: %s", state.snapshot, error)
