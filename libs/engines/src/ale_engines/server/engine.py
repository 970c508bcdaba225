"""The plugin of an engine that runs as servers: `replicas` of them behind one pool. A subclass names its replica."""

from __future__ import annotations

from abc import abstractmethod

from ale_engines.pool.pooled_engine import PooledEngine
from ale_engines.server.replica import ServerReplica
from ale_engines.server.settings import ServerSettings


class ServerEngine(PooledEngine):
    """An engine made of servers."""

    api_version = ">=1.0,<1.2"
    capabilities = frozenset({"real_tokens"})
    transports: tuple[str, ...] = ("memory", "folder")
    Config = ServerSettings
    config: ServerSettings

    def count_replicas(self) -> int:
        return len(self.config.urls) or self.config.replicas

    @abstractmethod
    def make_replica(self, number: int) -> ServerReplica:
        pass
