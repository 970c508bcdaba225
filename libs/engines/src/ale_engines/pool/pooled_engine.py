"""The plugin of an engine that is a pool. A subclass makes its replicas."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ale.specs.driver import Driver, DriverContext
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Tokenizer
from ale_engines.pool.engines import Engines
from ale_engines.pool.member import ReplicaStatus
from ale_engines.pool.replica import Replica


class PooledEngine(Driver, InferenceEngine):
    """An engine plugin that is a pool of replicas."""

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self.replicas: list[Replica] = [self.make_replica(number) for number in range(self.count_replicas())]
        event = context.channel.event
        self._pool = Engines(self.replicas, lambda text: event("note", text=text), event)
        self.transports = self._pool.transports

    @abstractmethod
    def count_replicas(self) -> int:
        """Return how many replicas it has in this process."""

    @abstractmethod
    def make_replica(self, number: int) -> Replica:
        """Make the replica of a number, from 0."""

    @property
    def max_context(self) -> int:
        return self._pool.max_context

    @property
    def version(self) -> int:
        return self._pool.version

    async def start(self) -> None:
        """Start the pool; servers start with `load_model`."""
        await self._pool.start()

    async def close(self) -> None:
        """End the pool and its replicas."""
        await self._pool.close()

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """Servers start with it."""
        await self._pool.load_model(folder, tokenizer)
        self.transports = self._pool.transports  # known once the servers run

    async def generate(self, request: GenerateRequest) -> Generation:
        return await self._pool.generate(request)

    def sampled_so_far(self, request: GenerateRequest, after: int = 0) -> Generation:
        """Return what has been sampled, beyond `after` tokens, for a request that runs."""
        return self._pool.sampled_so_far(request, after)

    async def load_weights(self, policy: PolicyVersion) -> None:
        await self._pool.load_weights(policy)

    async def pause(self) -> None:
        await self._pool.pause()

    async def resume(self) -> None:
        await self._pool.resume()

    async def sleep(self) -> None:
        await self._pool.sleep()

    async def wake(self) -> None:
        await self._pool.wake()

    def replica_statuses(self) -> tuple[ReplicaStatus, ...]:
        return self._pool.replica_statuses()

    def objection_to_lending(self, count: int) -> str:
        return self._pool.objection_to_lending(count)

    async def shrink(self, names: Sequence[str]) -> None:
        await self._pool.shrink(names)

    async def expand(self, names: Sequence[str]) -> None:
        await self._pool.expand(names)

    def metrics(self) -> dict[str, float]:
        return self._pool.metrics()
