"""A replica as a member of a pool: its state, its checks, and its restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ale.errors import AleError, EngineError
from ale.registry.validation import one_line_error
from ale.specs.engine import PolicyVersion, Tokenizer
from ale_engines.replica import Replica
from ale_engines.routing import Place

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
    """It broke a generation off, and is checked."""
    LOST = "lost"
    """It failed its checks, and is started again."""
    LEAVING = "leaving"
    FAILED = "failed"
    """It is not started again."""


@dataclass(eq=False)
class Member(Place):
    """See the module. Its `serving` and `version` follow its state."""

    replica: Replica = field(kw_only=True)
    state: State = State.EMPTY
    policy: PolicyVersion | None = None
    """What it loaded last; None for the model's own weights."""
    failures: int = 0
    """Restarts in a row without a generation that ended well in between."""
    interruptions: int = 0
    """Generations that it broke off since it finished one."""
    suspected: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while weights are loaded, and while it is checked or started again."""
    watch: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, replica: Replica) -> Member:
        """Return a member for a replica, without a model yet."""
        return cls(replica.name, max(1, replica.slots), replica=replica)

    @property
    def living(self) -> bool:
        """Whether it serves or may serve again."""
        return self.state in (State.SERVING, State.LOADING, State.SUSPECT, State.LOST)

    def change(self, state: State) -> None:
        """Go to another state; `Members.change` also tells those who wait."""
        self.state, self.serving = state, state is State.SERVING

    def finish(self) -> None:
        """Record that it finished a generation."""
        self.failures = self.interruptions = 0

    def suspect(self, state: State = State.SERVING) -> None:
        """Have it checked; if it is in this state, it is out of service until then."""
        if self.state is state:
            self.change(State.SUSPECT)
        self.suspected.set()

    async def wait_for_check(self) -> None:
        """Return when the next check is due: at once if it is suspected."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_S):
                await self.suspected.wait()
        self.suspected.clear()

    async def find_fault(self) -> AleError | None:
        """Check it, several times if need be; return the last error if it does not serve."""
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

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """Load a model. Its slots may follow from it."""
        await self.replica.load_model(folder, tokenizer)
        self.slots = max(1, self.replica.slots)
        self.policy, self.version, self.failures, self.interruptions = None, 0, 0, 0

    async def load(self, policy: PolicyVersion) -> None:
        """Load weights. Raises `AleError`; then it has the weights that it had, or fails its checks."""
        with self._engine_errors():
            await self.replica.load_weights(policy)
        self.policy, self.version = policy, policy.version

    async def restart(self) -> None:
        """End it and start it again at version 0. Raises `AleError` if it does not start."""
        with suppress(AleError, TimeoutError):
            async with asyncio.timeout(INTERRUPT_TIMEOUT_S):
                with self._engine_errors():
                    await self.replica.interrupt()
        with self._engine_errors():
            await self.replica.restart()
        self.policy, self.version, self.interruptions = None, 0, 0

    @contextmanager
    def _engine_errors(self) -> Iterator[None]:
        """Raise what is no `AleError` (a full disk, a mistake in the engine) as one: its care must go on."""
        try:
            yield
        except AleError:
            raise
        except Exception as error:
            raise EngineError(f"{self.name} failed: {one_line_error(error)}") from error
