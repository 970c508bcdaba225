"""The plugin: servers of SGLang behind one pool."""

from __future__ import annotations

from ale_engines.server.engine import ServerEngine
from ale_sglang.replica import SglangReplica


class SglangEngine(ServerEngine):
    """The engine `sglang`."""

    def make_replica(self, number: int) -> SglangReplica:
        return SglangReplica(self.config, self.context, number)
