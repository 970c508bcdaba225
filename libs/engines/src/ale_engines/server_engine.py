"""The plugin of an engine that runs as servers: `replicas` of them behind one pool. A subclass names its replica."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ale.specs.driver import Driver, DriverContext
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Tokenizer
from ale_engines.member import Seat
from ale_engines.pool import Engines
from ale_engines.server_replica import ServerReplica
from ale_engines.server_settings import ServerSettings


class ServerEngine(Driver, InferenceEngine):
    """An engine made of servers."""

    api_version = ">=1.0,<1.2"
    capabilities = frozenset({"real_tokens"})
    transports: tuple[str, ...] = ("memory", "folder")
    Config = ServerSettings
    config: ServerSettings

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self.replicas = [self.make_replica(number) for number in range(len(self.config.urls) or self.config.replicas)]
        event = context.channel.event
        self._pool = Engines(self.replicas, lambda text: event("note", text=text), event)
        self.transports = self._pool.transports

    @abstractmethod
    def make_replica(self, number: int) -> ServerReplica:
        """Make the replica of a number, from 0."""

    @property
    def max_context(self) -> int:
        """See `InferenceEngine.max_context`."""
        return self._pool.max_context

    @property
    def version(self) -> int:
        """See `InferenceEngine.version`."""
        return self._pool.version

    async def start(self) -> None:
        """Start the pool; the servers start with `load_model`."""
        await self._pool.start()

    async def close(self) -> None:
        """End the pool and the servers."""
        await self._pool.close()

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """Start the servers with a model."""
        await self._pool.load_model(folder, tokenizer)
        self.transports = self._pool.transports  # known once the servers run

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `InferenceEngine.generate`."""
        return await self._pool.generate(request)

    async def load_weights(self, policy: PolicyVersion) -> None:
        """See `InferenceEngine.load_weights`."""
        await self._pool.load_weights(policy)

    async def pause(self) -> None:
        """See `InferenceEngine.pause`."""
        await self._pool.pause()

    async def resume(self) -> None:
        """See `InferenceEngine.resume`."""
        await self._pool.resume()

    async def sleep(self) -> None:
        """See `InferenceEngine.sleep`."""
        await self._pool.sleep()

    async def wake(self) -> None:
        """See `InferenceEngine.wake`."""
        await self._pool.wake()

    def seats(self) -> tuple[Seat, ...]:
        """See `Engines.seats`."""
        return self._pool.seats()

    async def shrink(self, names: Sequence[str]) -> None:
        """See `Engines.shrink`."""
        await self._pool.shrink(names)

    async def expand(self, names: Sequence[str]) -> None:
        """See `Engines.expand`."""
        await self._pool.expand(names)

    def metrics(self) -> dict[str, float]:
        """See `InferenceEngine.metrics`."""
        return self._pool.metrics()
