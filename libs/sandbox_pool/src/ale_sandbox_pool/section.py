"""The section `pool` for the core: its keys, its needs, and the pool that it makes."""

from __future__ import annotations

from collections.abc import Iterator

from ale.specs.driver import Channel
from ale.specs.package_sections import Need, PoolSection
from ale.specs.sandbox import SandboxProvider
from ale.specs.sandbox_protocols import Resets
from ale_sandbox_pool.config import PoolConfig
from ale_sandbox_pool.pool import SandboxPool


class Pool(PoolConfig, PoolSection):
    """`pool`."""

    def pool(self, provider: SandboxProvider, channel: Channel) -> SandboxPool:
        """See `PoolSection.pool`."""
        return SandboxPool(provider, self, channel)

    def needs(self) -> Iterator[Need]:
        """See `PackageSection.needs`."""
        if self.warm:
            yield Need(f"pool.warm={self.warm}", "sandbox", Resets)
