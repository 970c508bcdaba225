"""The settings of the local provider."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ale.specs.driver import PluginConfig
from ale.specs.sandbox import Resources


class LocalSandboxConfig(PluginConfig):
    """Settings of the local provider."""

    isolation: Literal["auto", "bubblewrap", "none"] = Field(
        "auto",
        description=(
            "bubblewrap: Linux namespaces; none: a plain subprocess; auto: namespaces if they work here, else none."
        ),
    )
    host_python: bool = Field(
        True, description="Mount the Python that runs ALE in the sandbox, read-only and last in PATH."
    )
    shell: str | None = Field(None, description="Shell that runs commands; null: /bin/bash if it exists, else /bin/sh.")
    folders: tuple[str, ...] = Field(
        (),
        description="More folders in which a sandbox's agent may write, such as /root or /data/logs, with those above "
        "them; not without isolation.",
    )
    defaults: Resources = Field(
        Resources(cpus=None, memory_mib=2048, pids=512, disk_mib=512),
        description="Limits of sandboxes whose own limits are null.",
    )
    uid_base: int = Field(
        1_900_000_000,
        gt=65535,
        lt=2_147_000_000,
        description="If ALE runs as root: first of the 65,536 user and group ids of the host that sandboxes use.",
    )
