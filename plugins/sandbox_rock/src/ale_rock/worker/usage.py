"""What a sandbox uses (memory, processor, files, processes, network), by the protocol `Measures`."""

from __future__ import annotations

import time

from ale.specs.sandbox import Sandbox
from ale.specs.sandbox_protocols import Measures, lacks
from ale_rock.schemas import Usage


class UsageMeter:
    """Measures one sandbox. It keeps the last processor time, from which the next measurement gets a rate."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._at, self._cpu_s = time.monotonic(), 0.0

    async def now(self) -> Usage:
        """Return what it uses now. Raises `PluginError` if that cannot be measured, and `SandboxError`."""
        if not isinstance(self._sandbox, Measures):
            raise lacks(self._sandbox, Measures)
        stats = await self._sandbox.stats()
        at, cores = time.monotonic(), None
        if stats.cpu_s is not None:
            cores = round(max(0.0, stats.cpu_s - self._cpu_s) / max(at - self._at, 1e-3), 3)
            self._at, self._cpu_s = at, stats.cpu_s
        return Usage(
            memory_bytes=stats.memory_bytes,
            cpu_s=stats.cpu_s,
            cpu_cores=cores,
            pids=stats.pids,
            disk_bytes=stats.disk_bytes,
            network_in_bytes=stats.network_in_bytes,
            network_out_bytes=stats.network_out_bytes,
        )
