"""The keys of the section `pool`."""

from __future__ import annotations

from pydantic import Field

from ale.specs.choice import Section


class PoolConfig(Section):
    """How a run keeps its sandboxes: warm ones ready, reused if that is safe, and limited in number."""

    max_uses: int = Field(
        32,
        gt=0,
        description=(
            "Most episodes that one sandbox serves, one after another. Between them it is reset, and it is reused"
            " only if the reset shows that nothing is left (`Resets`). 1: each episode gets a new one."
        ),
    )
    warm: int = Field(
        0,
        ge=0,
        description=(
            "Sandboxes of each kind (image, limits, network) that are kept ready. Needs a provider whose "
            "sandboxes can be reset (`Resets`)."
        ),
    )
    max_sandboxes: int | None = Field(
        None,
        gt=0,
        description=(
            "Most sandboxes of one provider at the same time, warm ones included; further episodes wait. null: no"
            " limit."
        ),
    )
    starts_at_once: int = Field(8, gt=0, description="Most sandboxes of one provider that start at the same time.")
    wait_s: float = Field(300.0, gt=0, description="Seconds after which an episode that waits for a sandbox fails.")
    idle_s: float = Field(
        300.0, gt=0, description="Seconds after which an unused sandbox is stopped, unless it is kept warm."
    )
