"""The settings that container providers share."""

from __future__ import annotations

from pydantic import Field

from ale.specs.driver import PluginConfig
from ale.specs.sandbox import Resources


class ContainerConfig(PluginConfig):
    """Settings that container providers share."""

    image: str | None = Field(
        None, description="Image of sandboxes that name none; null: a small image built from this machine's programs."
    )
    user: str = Field(
        "agent",
        pattern="^(agent|root)$",
        description="User that runs commands: agent (unprivileged), or root for images whose files belong to root.",
    )
    shell: str | None = Field(None, description="Shell that runs commands; null: bash if the image has it, else sh.")
    defaults: Resources = Field(
        Resources(memory_mib=2048, pids=512), description="Limits of sandboxes whose own limits are null."
    )
    starts_at_once: int = Field(4, gt=0, description="How many containers may start at the same time; others wait.")
    start_timeout_s: float = Field(60.0, gt=0, description="Seconds within which a container must be ready.")
    pull: bool = Field(True, description="Pull images that are missing.")
