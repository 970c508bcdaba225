"""States of experts, kept as snapshots: a rollout that starts after chunk k of an expert gets a fork of the sandbox
at that point.

1. The first rollout that needs a state makes it (`snapshot_replay.py`): one replay in a sandbox, with a snapshot at
   every start that any rollout has asked for. Other rollouts that need these states wait; an expert has one such replay
   at a time.
2. If infrastructure fails during that replay, the rollout that made it fails and is repeated; the next rollout tries
   again. Any other failure makes starts *unreachable*: from then on, every rollout replays them itself.
3. Beyond `most` states the least recently used ones are removed, and all of them at the end.
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
from ale.specs.sandbox import SandboxProvider, SandboxSpec
from ale.specs.sandbox_protocols import KeepsSnapshots
from ale.specs.scaffold import Scaffold
from ale_train.starts.recording_sandbox import RecordedCall

log = logging.getLogger("ale.replay")

MOST = 64
"""The largest number of states that are kept."""


class ExpertKey(NamedTuple):
    """An expert in the sandboxes of a provider, with the agent of a scaffold."""

    provider: SandboxProvider
    scaffold: Scaffold
    task_id: str
    trajectory_id: str


@dataclass(eq=False)
class State:
    """A snapshot of the sandbox after an expert's first chunks, with the record of the calls that led there."""

    expert: ExpertKey
    start: int
    """How many of the expert's chunks come before it."""
    snapshot: str
    record: tuple[RecordedCall, ...]
    tools: frozenset[str]
    """The tools of the policy's first model call."""
    users: int = 0
    """How many rollouts are starting a sandbox from it right now."""

    def fork(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the spec to start instead of `spec`; the snapshot has the task's files as the expert left them.

        A fork that starts in milliseconds gets its own id, so that no pool keeps it for reuse.
        """
        own = f"ale-fork-{secrets.token_hex(6)}" if "fork" in self.expert.provider.capabilities else None
        return spec.model_copy(update={"id": own, "from_snapshot": self.snapshot, "files": {}})


@dataclass
class Starts:
    """The starts of one expert, by how many of its chunks come before: the existing and the wanted ones."""

    expert: ExpertKey
    states: dict[int, State] = field(default_factory=dict)
    wanted: set[int] = field(default_factory=set)
    reached: int = 0
    """The last chunk after which the latest replay could save a state."""
    unreachable: int | None = None
    """Starts from this one on have no state and are replayed."""
    replaying: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def want(self, start: int) -> None:
        """Ask the replay to save this start too, if it is still to come."""
        if start not in self.states and not self.is_unreachable(start):
            self.wanted.add(start)

    def add(self, state: State) -> None:
        """Add a state that was made."""
        self.states[state.start] = state
        self.wanted.discard(state.start)
        self.wake_waiters()

    def give_up(self, start: int) -> None:
        """Mark this start and later ones as unreachable."""
        self.unreachable = min(start, start if self.unreachable is None else self.unreachable)
        self.wanted = {wanted for wanted in self.wanted if wanted < start}
        self.wake_waiters()

    def is_unreachable(self, start: int) -> bool:
        """Return whether this start is unreachable."""
        return self.unreachable is not None and start >= self.unreachable

    def wake_waiters(self) -> None:
        """Wake the rollouts that wait for a change."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


MakeStates = Callable[[Starts], Awaitable[None]]
"""Replays an expert and adds the wanted states. Raises the `AleError` that kept it from reaching all of them."""


class ExpertStates:
    """All states of a run. `event` records in the run's store what happens to them."""

    def __init__(self, event: Callable[..., None] = lambda kind, **data: None, most: int = MOST) -> None:
        self._event = event
        self._most = most
        self._starts: dict[ExpertKey, Starts] = {}
        self._kept: dict[State, None] = {}
        """All states; the least recently used one comes first."""

    def __reduce__(self) -> tuple[type[ExpertStates], tuple[()]]:
        """A copy in another process holds no states, because snapshots belong to a provider there."""
        return ExpertStates, ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Remove every snapshot."""
        for state in list(self._kept):
            await self._remove(state)

    def want(self, expert: ExpertKey, start: int) -> None:
        """Announce that a state will be asked for."""
        self._starts_of(expert).want(start)

    @asynccontextmanager
    async def lend(self, expert: ExpertKey, start: int, make: MakeStates) -> AsyncIterator[State | None]:
        """Lend a state, which is kept while this is open; None if the expert is to be replayed. Raises `SandboxError`,
        `ConfigError`."""
        state = await self._find_or_make(expert, start, make)
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
            assert isinstance(expert.provider, KeepsSnapshots)
            if state in self._kept and state.snapshot not in await expert.provider.snapshots():
                self._forget(state)
                raise SandboxError(
                    f"The snapshot {state.snapshot} of an expert's state was removed by another process."
                ) from None
            raise
        finally:
            state.users -= 1

    def diverged(self, state: State, reason: str) -> None:
        """Note that an agent diverged from the replay in a fork: rollouts of this expert are now replayed."""
        self._give_up(state.expert, 0, reason)

    async def _find_or_make(self, expert: ExpertKey, start: int, make: MakeStates) -> State | None:
        starts = self._starts_of(expert)
        while not starts.is_unreachable(start):
            if start in starts.states:
                return starts.states[start]
            starts.want(start)
            if starts.replaying:
                await starts.changed.wait()
            else:
                await self._make(expert, starts, start, make)
        return None

    async def _make(self, expert: ExpertKey, starts: Starts, start: int, make: MakeStates) -> None:
        """Replay once. Afterwards the start has a state or is unreachable, unless it was asked for after the replay had
        passed it; or this raises."""
        before, reason, began = set(starts.states), "the agent makes fewer calls", time.monotonic()
        starts.replaying, starts.reached = True, 0
        try:
            await make(starts)
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
            starts.replaying = False
            starts.wake_waiters()
        if made:
            seconds = round(time.monotonic() - began, 3)
            snapshots = [starts.states[each].snapshot for each in made if each in starts.states]
            self._event(
                "start_states_made",
                expert=expert.trajectory_id,
                task=expert.task_id,
                starts=made,
                snapshots=snapshots,
                seconds=seconds,
            )
        if start not in starts.states and start > starts.reached:
            self._give_up(expert, starts.reached + 1, reason)

    def _give_up(self, expert: ExpertKey, start: int, reason: str) -> None:
        if self._starts_of(expert).is_unreachable(start):
            return
        log.info(
            "Rollouts of the expert %s are replayed instead of forked from start %d on: %s",
            expert.trajectory_id,
            start,
            reason,
        )
        self._starts[expert].give_up(start)
        self._event(
            "start_states_given_up", expert=expert.trajectory_id, task=expert.task_id, start=start, reason=reason
        )

    async def _make_room(self) -> None:
        """Remove the least recently used states."""
        for state in list(self._kept):
            if len(self._kept) <= self._most:
                return
            if not state.users:  # checked each time, because states may be lent during a removal
                await self._remove(state)

    def _forget(self, state: State) -> None:
        del self._kept[state]
        starts = self._starts[state.expert]
        del starts.states[state.start]
        if not (starts.states or starts.wanted or starts.replaying or starts.unreachable is not None):
            del self._starts[state.expert]

    def _starts_of(self, expert: ExpertKey) -> Starts:
        return self._starts.setdefault(expert, Starts(expert))

    async def _remove(self, state: State) -> None:
        if state not in self._kept:
            return
        self._forget(state)
        assert isinstance(state.expert.provider, KeepsSnapshots)
        try:
            await state.expert.provider.remove_snapshot(state.snapshot)
        except AleError as error:  # a running sandbox uses it; the provider removes it when it closes
            log.debug("the snapshot %s stays until its provider is closed: %s", state.snapshot, error)
