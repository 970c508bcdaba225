"""The engine `mixed`: one pool over the replicas of several engine plugins, its parts.

A part that is itself a pool, as servers are, gives its replicas; any other engine is one replica."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ale.registry.drivers import build_driver, load_plugin
from ale.specs.driver import DriverContext
from ale_engines.mixed.settings import MixedSettings
from ale_engines.pool.driver_replica import DriverReplica
from ale_engines.pool.pooled_engine import PooledEngine
from ale_engines.pool.replica import Replica


class MixedEngine(PooledEngine):
    """Engines of several kinds as one pool, such as vLLM beside SGLang."""

    api_version = ">=1.0,<1.2"
    capabilities = frozenset({"real_tokens"})
    transports = ("memory", "folder", "gloo", "nccl", "ipc")  # an object names those that all of its parts name
    Config = MixedSettings
    config: MixedSettings

    def __init__(self, config: Any, context: DriverContext) -> None:
        self._parts: list[Any] = []
        """Their drivers, which are engines."""
        self._places: list[tuple[int, int, int]] = []
        """For each replica the number of its part, its own in the part, and how many the part has."""
        for part, choice in enumerate(config.parts):
            # Each has a seed of its own: else they would draw the same numbers for requests that have none.
            own = replace(context, seed=context.seed + part)
            driver = build_driver("engine", choice, own, f"engine.parts.{part}")
            count = driver.count_replicas() if isinstance(driver, PooledEngine) else 1
            self._parts.append(driver)
            self._places += [(part, number, count) for number in range(count)]
        super().__init__(config, context)

    @classmethod
    def provides(cls, config: MixedSettings) -> frozenset[str]:
        """What all parts can do."""
        loaded = [load_plugin("engine", part) for part in config.parts]
        return cls.capabilities.intersection(*(plugin.cls.provides(plugin.config) for plugin in loaded))

    @classmethod
    def needs(cls, config: MixedSettings) -> Mapping[str, Collection[str | type]]:
        """What any part needs."""
        found: dict[str, list[str | type]] = {}
        for part in config.parts:
            plugin = load_plugin("engine", part)
            for kind, capabilities in plugin.cls.needs(plugin.config).items():
                found.setdefault(kind, []).extend(capabilities)
        return found

    def count_replicas(self) -> int:
        return len(self._places)

    def make_replica(self, number: int) -> Replica:
        """A cluster may ask for more than the parts have: they take turns then, each
        as often as it has replicas."""
        turn, place = divmod(number, len(self._places))
        part, own, count = self._places[place]
        driver = self._parts[part]
        if isinstance(driver, PooledEngine):
            return driver.make_replica(turn * count + own)
        uses = [choice.use.rpartition(":")[2] for choice in self.config.parts]
        name = f"{uses[part]} {Counter(uses[:part])[uses[part]]}"
        return DriverReplica(driver, name, int(getattr(driver, "slots", 64)))

    async def start(self) -> None:
        """Start the parts. The engine can do what all of them can on this machine."""
        await super().start()
        now = self.capabilities.intersection(*(part.capabilities for part in self._parts))
        self.capabilities = now  # type: ignore[misc]
