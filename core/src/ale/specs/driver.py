"""The base of every plugin: a class with a nested pydantic `Config`, built as `Driver(config, context)`.

1. The registry finds the class through the entry-point group of its kind (`KINDS`), checks `api_version`, and validates
   the YAML section of the run against `Config` (unknown keys are refused).
2. It builds the driver, then the run enters `async with driver:`, which calls `start()` and, whatever happens in
   between, `close()`. A driver holds no resource before `start` and none after `close`.
3. `capabilities` says what it can do beyond its contract, `needs` what the run's other plugins must be able to do; a
   run whose needs are not met is refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from ale.specs.ranks import RankPlaces


class PluginConfig(BaseModel):
    """Base of every plugin's `Config`: it is frozen and refuses unknown keys. Give every field a description."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Channel:
    """The connection from a driver to the run that built it. This base class is used without a run and does nothing."""

    def event(self, kind: str, **data: Any) -> None:
        """Store an event of the run: a kind, and named values that JSON can hold. The `text` of the kind `note` is a
        sentence that the progress display shows."""

    def notify(self, hook: str, **arguments: Any) -> None:
        """Call a hook of the run's observers (`ale.specs.events`)."""

    def redact(self, text: str) -> str:
        """Remove the run's secrets from a text: use it for all that a driver writes to a file or sends away."""
        return text


@dataclass(frozen=True)
class DriverContext:
    """What a run gives to each driver that it builds: data, and one channel back to the run."""

    run_id: str = "adhoc"
    run_dir: Path | None = None
    seed: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    channel: Channel = field(default_factory=Channel)
    ranks: RankPlaces | None = None
    """Where a cluster has room for the ranks of a trainer; None: they are processes beside the run."""


class Lifecycle:
    """An object that holds resources between `start` and `close`; `async with` calls both."""

    async def start(self) -> None:
        """Acquire what is needed. It is called once, before anything else."""

    async def close(self) -> None:
        """Release everything. It is idempotent, and is also called after a failed `start` and after cancellation."""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class Driver(Lifecycle):
    """The class that a plugin inherits beside the contract of its kind: `class Crate(Driver, SandboxProvider)`."""

    api_version: ClassVar[str] = ""
    """The versions of the contracts that the driver was made for, such as `>=1.0,<1.2` (see `ale.specs.kinds`)."""
    capabilities: ClassVar[frozenset[str]] = frozenset()
    """What it can do beyond the contract, in the words of `ale.specs.kinds.CAPABILITIES`. `start` may narrow it on the
    instance to what works on this machine."""
    Config: ClassVar[type[PluginConfig]] = PluginConfig

    def __init__(self, config: Any, context: DriverContext) -> None:
        self.config = config
        self.context = context

    @classmethod
    def provides(cls, config: Any) -> frozenset[str]:
        """Return its capabilities with these settings; override it if a setting takes a capability away."""
        return cls.capabilities

    @classmethod
    def needs(cls, config: Any) -> Mapping[str, Collection[str | type]]:
        """Return what the run's other plugins must be able to do with these settings: kind -> capabilities, or
        protocols of its sandboxes (`ale.specs.sandbox_protocols`)."""
        return {}
