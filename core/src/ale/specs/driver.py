"""What every plugin of every kind is: a class with a nested pydantic `Config`, built as `Driver(config, context)`.

1. The registry finds the class through the entry-point group of its kind (`KINDS`), checks `api_version`, and
   validates the YAML section of the run against `Config` (unknown keys are refused).
2. It builds the driver, then the run enters `async with driver:`, which calls `start()` and, whatever happens
   in between, `close()`. A driver holds no resource before `start` and none after `close`.
3. `capabilities` says what it can do beyond the bare contract, `needs` what the run's other plugins must be able to do;
   a run whose needs are not met is refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict


class PluginConfig(BaseModel):
    """Base of every plugin's `Config`: frozen, unknown keys refused. Give every field a description."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class DriverContext:
    """What a run hands to each driver it builds."""

    run_id: str = "adhoc"
    run_dir: Path | None = None
    seed: int = 0
    hooks: Any = None
    """The observers of the run (`ale.hooks.Hooks`; `None` outside a run)."""
    labels: Mapping[str, str] = field(default_factory=dict)
    event: Callable[..., None] = lambda kind, **data: None
    """Puts an event into the run's store: a kind, and what JSON can hold by name."""
    redact: Callable[[str], str] = str
    """Takes the run's secrets out of a text: for all that a driver writes to a file or sends away."""


class Driver:
    """Root of all driver contracts."""

    api_version: ClassVar[str] = ""
    """The versions of the contracts that the driver was made for, such as `>=1.1,<1.3` (see `ale.specs.kinds`)."""
    capabilities: ClassVar[frozenset[str]] = frozenset()
    """What it can do beyond the contract, in the words of `ale.specs.kinds.CAPABILITIES`. `start` may narrow it on the
    instance to what this machine gives."""
    Config: ClassVar[type[PluginConfig]] = PluginConfig

    def __init__(self, config: Any, context: DriverContext) -> None:
        self.config = config
        self.context = context

    @classmethod
    def provides(cls, config: Any) -> frozenset[str]:
        """What it can do with these settings; override it where a setting takes a capability away."""
        return cls.capabilities

    @classmethod
    def needs(cls, config: Any) -> Mapping[str, Collection[str]]:
        """What the run's other plugins must be able to do with these settings: kind -> capabilities."""
        return {}

    async def start(self) -> None:
        """Acquire what the driver needs. Called once, before anything else."""

    async def close(self) -> None:
        """Release everything. Idempotent; called also after a failed `start` and after cancellation."""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
