"""A replica as a member of a pool: its state, its checks, and its restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ale.errors import AleError, EngineError
from ale.registry.validation import one_line_error
from ale.specs.engine import GenerateRequest, Generation, PolicyVersion, Tokenizer
from ale_engines.pool.dispatch import EngineTarget
from ale_engines.pool.replica import Replica

CHECK_S = 10.0
"""Seconds between two checks of a replica."""
CHECK_TIMEOUT_S = 10.0
PROBES, PROBE_S = 3, 1.0
"""A replica is lost after this many failed checks in a row, with so many seconds between them."""
INTERRUPT_TIMEOUT_S = 5.0
INTERRUPTED_ROUNDS = 3
"""A replica that answers checks, but broke off so many times its slots without finishing one generation, is lost."""


class State(StrEnum):
    """What a member does."""

    EMPTY = "empty"
    """It has no model yet."""
    SERVING = "serving"
    LOADING = "loading"
    """It loads weights; what it generates goes on, and new requests go elsewhere meanwhile."""
    SUSPECT = "suspect"
    """It broke a generation off, or could not sleep or wake, and is checked."""
    LOST = "lost"
    """It failed its checks, and is started again."""
    LEAVING = "leaving"
    """It is about to leave the pool or to sleep, and gives its generations to others."""
    ASLEEP = "asleep"
    """Its memory is free. It is not checked and gets no weights until it wakes up."""
    FAILED = "failed"
    """It is not started again."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A member as a process that dispatches to the same replicas must know it (`dispatch.py`)."""

    name: str
    slots: int
    state: State
    version: int
    max_context: int


@dataclass(eq=False)
class Member(EngineTarget):
    """A replica with its state in the pool. `serving` and `version` follow the state."""

    replica: Replica = field(kw_only=True)
    on_change: Callable[[], None] = field(default=lambda: None, kw_only=True)
    """Called after each change of its state or its version."""
    state: State = State.EMPTY
    policy: PolicyVersion | None = None
    """What it loaded last; None for the model's own weights."""
    failures: int = 0
    """Restarts in a row without a generation that ended well in between."""
    interruptions: int = 0
    """Generations that it broke off since it finished one."""
    fault: AleError | None = None
    """Why it must be started again, whatever its checks say."""
    suspected: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while weights are loaded, while it is checked or started again, and while it falls asleep or wakes up."""
    watch: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, replica: Replica) -> Member:
        """Return a member for a replica, without a model yet."""
        return cls(replica.name, max(1, replica.slots), replica=replica)

    # --- what it can do now

    @property
    def living(self) -> bool:
        """Whether it serves or may serve again."""
        return self.state not in (State.EMPTY, State.FAILED)

    @property
    def ready(self) -> bool:
        return self.state in (State.SERVING, State.LOADING)

    @property
    def leaving(self) -> bool:
        return self.state in (State.LEAVING, State.ASLEEP)

    @property
    def ailing(self) -> bool:
        """Whether it may have a fault, and is checked or started again."""
        return self.state in (State.SUSPECT, State.LOST)

    @property
    def busy(self) -> bool:
        """Whether it generates, for the pool or for others."""
        return self.active > 0 or self.replica.requests > 0

    @property
    def max_context(self) -> int:
        return self.replica.max_context

    @property
    def status(self) -> ReplicaStatus:
        """What others must know of it."""
        return ReplicaStatus(self.name, self.slots, self.state, self.version, self.max_context)

    async def generate(self, request: GenerateRequest) -> Generation:
        return await self.replica.generate(request)

    def sampled_so_far(self, request: GenerateRequest, after: int) -> Generation:
        return self.replica.sampled_so_far(request, after)

    # --- changes of its state

    def change(self, state: State) -> None:
        """Go to another state."""
        if state is not self.state:
            self.state, self.serving = state, state is State.SERVING
            self.on_change()

    def finish(self) -> None:
        self.failures = self.interruptions = 0

    def broke_off(self) -> None:
        self.interruptions += 1
        self.suspect()

    def suspect(self, *states: State) -> None:
        """Have it checked. In one of these states (`SERVING` if none is named) it is out of service until then."""
        if self.state in (states or (State.SERVING,)):
            self.change(State.SUSPECT)
        self.suspected.set()

    def require_restart(self, fault: AleError) -> None:
        """Have its watch start it again, because of this fault."""
        self.fault = fault
        self.suspect(self.state)

    # --- checks

    async def wait_for_check(self) -> None:
        """Return when the next check is due: at once if it is suspected."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_S):
                await self.suspected.wait()
        self.suspected.clear()

    async def find_fault(self) -> AleError | None:
        """Check it, several times if need be; return the last error if it does not serve."""
        if self.fault is not None:
            return self.fault
        if self.interruptions >= INTERRUPTED_ROUNDS * self.slots:
            return EngineError(f"{self.name} broke off {self.interruptions} generations and finished none.")
        for attempt in range(PROBES):
            if attempt:
                await asyncio.sleep(PROBE_S)
            error = await self._check()
            if error is None:
                return None
        return error

    async def _check(self) -> AleError | None:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                with self._engine_errors():
                    await self.replica.check()
        except TimeoutError:
            return EngineError(f"{self.name} did not answer a check within {CHECK_TIMEOUT_S:g} s.")
        except AleError as error:
            return error
        return None

    # --- what its replica does; each raises `AleError`

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """Load a model. Its slots may follow from it."""
        await self.replica.load_model(folder, tokenizer)
        self.slots = max(1, self.replica.slots)
        self.policy, self.version, self.failures, self.interruptions, self.fault = None, 0, 0, 0, None

    async def load(self, policy: PolicyVersion) -> None:
        """Load weights. If it raises, it has the weights that it had, or fails its checks."""
        with self._engine_errors():
            await self.replica.load_weights(policy)
        self.policy, self.version = policy, policy.version
        self.on_change()

    async def restart(self) -> None:
        """End it and start it again at version 0."""
        with suppress(AleError, TimeoutError):
            async with asyncio.timeout(INTERRUPT_TIMEOUT_S):
                await self.interrupt()
        with self._engine_errors():
            await self.replica.restart()
        self.policy, self.version, self.interruptions, self.fault = None, 0, 0, None
        self.on_change()

    async def close(self) -> None:
        """End it for good and free its memory and devices; errors are ignored."""
        with suppress(AleError), self._engine_errors():
            await self.replica.close()

    async def interrupt(self) -> None:
        """End all that it generates."""
        with self._engine_errors():
            await self.replica.interrupt()

    async def sleep(self) -> None:
        """Free its memory."""
        with self._engine_errors():
            await self.replica.sleep()

    async def wake(self) -> None:
        """Take the memory again. An engine may lose its weights in its sleep, all but those of the model: it counts as
        one that has loaded none. It may also have been paused when it fell asleep, and samples again."""
        with self._engine_errors():
            await self.replica.wake()
            await self.replica.resume()
        self.policy, self.version = None, 0
        self.on_change()

    @contextmanager
    def _engine_errors(self) -> Iterator[None]:
        """Raise any other error (a full disk, a mistake in the engine) as an `AleError`, so that the pool goes on
        checking and restarting the replica."""
        try:
            yield
        except AleError:
            raise
        except Exception as error:
            raise EngineError(f"{self.name} failed: {one_line_error(error)}") from error
