"""A sandbox that can be reset: its resident removes what was left and checks that it is like new."""

from __future__ import annotations

from collections.abc import Callable

from ale.errors import ConfigError, UncleanError
from ale.specs.sandbox import SandboxSpec
from ale_sandbox.host.commands import check_environment
from ale_sandbox.host.journal import printable
from ale_sandbox.resident.frames import RESET
from ale_sandbox.sandboxes.sandbox import ResidentSandbox

RESET_S = 40.0
"""Longer than a resident takes to find out that it cannot reset the sandbox."""
REMAINS = ("processes", "files", "memory", "sockets", "connections", "network", "mounts", "keys", "resident")
"""The words by which a resident says in what its sandbox differs from a new one (`resident/reset/baseline.py`)."""


class ResettableSandbox(ResidentSandbox):
    """Has `Resets`."""

    constants: Callable[[SandboxSpec], list[bytes]]
    """Makes the resident's constants (see `set_up`) from a spec; set by the provider."""

    async def reset(self, spec: SandboxSpec) -> None:
        for name in SandboxSpec.model_fields.keys() - {"env", "files", "labels"}:
            if getattr(spec, name) != getattr(self.spec, name):
                raise ConfigError(
                    f"The sandbox {self.name} was started with another {name}, which a reset cannot change; start a "
                    "new one."
                )
        check_environment(spec.env)
        try:
            await self.channel.ask(RESET, self.constants(spec), RESET_S)
        except OSError as error:
            reason = printable(str(error.strerror))
            what = reason.partition(":")[0]
            raise UncleanError(
                f"The sandbox {self.name} cannot be shown to be like new ({reason}); stop it and start another.",
                what if what in REMAINS else "other",
            ) from error
        self.spec = spec
        if self.gate is not None:
            self.gate.bytes_in = self.gate.bytes_out = 0
        self.note("it was reset")
        if spec.files:
            await self.upload(spec.files)
