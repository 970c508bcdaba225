"""The plugin: servers of vLLM behind one pool."""

from __future__ import annotations

from ale_engines.server.engine import ServerEngine
from ale_vllm.replica import VllmReplica


class VllmEngine(ServerEngine):
    """The engine `vllm`."""

    transports = ("memory", "folder", "gloo", "nccl", "ipc")  # an object names those of its machine

    def make_replica(self, number: int) -> VllmReplica:
        return VllmReplica(self.config, self.context, number)
