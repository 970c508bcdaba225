"""The engine as a rollout worker sees it: it sends generations straight to the engines' actors.

The run's process owns the engines: it alone checks them, starts them again and loads weights. The worker gets a table
of them whenever something has changed there, and reports an engine that broke a generation off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ale.errors import EngineError
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Tokenizer
from ale_engines.pool.admission import Admission
from ale_engines.pool.continuation import NOTHING
from ale_engines.pool.dispatch import EngineTarget, Progress, dispatch
from ale_engines.pool.member import State
from ale_ray.engine_calls import EngineCalls


@dataclass(frozen=True, slots=True)
class TableRow:
    """An engine in the table."""

    name: str
    actor: Any
    """It changes when the engine is started again."""
    slots: int
    state: State
    version: int
    max_context: int


@dataclass(frozen=True, slots=True)
class EngineTable:
    """The engines at a moment."""

    number: int
    """It is larger in a later table."""
    rows: tuple[TableRow, ...]
    version: int
    """That of the pool: while no engine serves, it is of the weights with which the next one will."""
    refusal: str
    """Why no engine will ever serve, if so."""


class RemoteReplica(EngineTarget):
    """An engine on some node."""

    def __init__(self, row: TableRow, report: Callable[[str, bool], None]) -> None:
        super().__init__(row.name, row.slots)
        self._report = report
        self._calls = EngineCalls(row.actor, row.name)
        self._proven: Any = None
        """The actor of which it was reported that it works."""
        self.update(row)

    def update(self, row: TableRow) -> None:
        """Take what the run says now."""
        self.row = row
        if row.actor != self._calls.actor:
            self._calls = EngineCalls(row.actor, row.name)
        self.slots, self.version, self.serving = max(1, row.slots), row.version, row.state is State.SERVING

    @property
    def max_context(self) -> int:
        return self.row.max_context

    @property
    def ready(self) -> bool:
        return self.serving or self.row.state is State.LOADING

    @property
    def leaving(self) -> bool:
        return self.row.state in (State.LEAVING, State.ASLEEP)

    async def generate(self, request: GenerateRequest) -> Generation:
        return await self._calls.generate(request)

    def sampled_so_far(self, request: GenerateRequest, after: int) -> Generation:
        return self._calls.sampled_so_far(request, after)

    def finish(self) -> None:
        """Report the first generation that ended well since the engine was started or broke one off."""
        if self._proven != self.row.actor:
            self._proven = self.row.actor
            self._report(self.name, True)

    def broke_off(self) -> None:
        """Send nothing more there until the run's next table, and have the engine checked."""
        self.serving, self._proven = False, None
        self._report(self.name, False)


class RoutedEngine(InferenceEngine):
    """Sends generations to the engines' actors. `report` gets the name of an engine and whether it works (True), or
    broke a generation off (False)."""

    def __init__(self, report: Callable[[str, bool], None]) -> None:
        self._report = report
        self._admission = Admission(self._find_refusal)
        self._replicas: dict[str, RemoteReplica] = {}
        self._table = EngineTable(-1, (), 0, "")
        self._counts: Counter[str] = Counter()
        self._running: dict[int, Progress] = {}

    def update(self, table: EngineTable) -> None:
        """Take a table, unless a newer one came before it."""
        if table.number <= self._table.number:
            return
        self._table = table
        router = self._admission.router
        for row in table.rows:
            replica = self._replicas.get(row.name)
            if replica is None:
                replica = self._replicas[row.name] = RemoteReplica(row, self._report)
                router.targets.append(replica)
            elif replica.row.actor != row.actor:
                router.forget(replica)  # its cache is lost
            replica.update(row)
        for name in self._replicas.keys() - {row.name for row in table.rows}:
            gone = self._replicas.pop(name)
            router.targets.remove(gone)
            router.forget(gone)
            gone.update(replace(gone.row, state=State.LEAVING))  # what it breaks off is no fault
        self._admission.serve()

    def _find_refusal(self) -> EngineError | None:
        return EngineError(self._table.refusal) if self._table.refusal else None

    @property
    def max_context(self) -> int:
        """The most tokens of a request that every engine takes."""
        return min((replica.max_context for replica in self._replicas.values()), default=0)

    @property
    def version(self) -> int:
        """The pool's, so that episodes have the same wherever they begin."""
        return self._table.version

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """The run's process loads models."""
        raise NotImplementedError

    async def load_weights(self, policy: PolicyVersion) -> None:
        """The run's process loads weights."""
        raise NotImplementedError

    async def generate(self, request: GenerateRequest) -> Generation:
        return await dispatch(self._admission, request, self._counts, self._running)

    def sampled_so_far(self, request: GenerateRequest, after: int = 0) -> Generation:
        """Return what is known to be sampled, beyond `after` tokens, for a request that runs: the object that
        `generate` got."""
        found = self._running.get(id(request))
        return NOTHING if found is None else found.sampled_so_far(after)
