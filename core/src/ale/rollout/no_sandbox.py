"""What a run has in place of a sandbox where its scaffold and its reward use none: nothing is started."""

from __future__ import annotations

import uuid
from typing import Any

from ale.errors import PluginError
from ale.specs.sandbox import Sandbox, SandboxInfo, SandboxProvider, SandboxSpec


class NoSandbox(Sandbox):
    """It refuses every call but `stop`."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.id, self.spec = f"none-{uuid.uuid4().hex[:8]}", spec

    async def _refuse(self, *arguments: Any, **options: Any) -> Any:
        raise PluginError(
            "A plugin wanted to use the sandbox, but this run has none: the scaffold and the reward say that they use "
            "none (uses_sandbox). The plugin that does must say so."
        )

    exec = upload = download = kill_agent_processes = _refuse

    async def stop(self) -> None:
        """Do nothing."""


class NoSandboxes(SandboxProvider):
    """The provider of a run without sandboxes."""

    async def start_sandbox(self, spec: SandboxSpec) -> Sandbox:
        return NoSandbox(spec)

    async def list(self) -> list[SandboxInfo]:
        return []

    async def remove(self, sandbox_id: str) -> None:
        """Do nothing."""
