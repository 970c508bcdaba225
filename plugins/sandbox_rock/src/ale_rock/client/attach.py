"""Attaches to a sandbox of a ROCK service that another process has started: `Attaches`.

The service knows with which spec the sandbox was started. So its owner, which may have been killed, is not asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from typing import cast
from urllib.parse import quote

from pydantic import ValidationError

from ale.errors import ConfigError, SandboxError
from ale_rock.client.protocols import PARTS, sandbox_type_of
from ale_rock.client.sandbox import Owner, RockSandbox
from ale_rock.client.service_client import ALE, ServiceClient
from ale_rock.schemas import SandboxDescription
from ale_sandbox.host.commands import as_bytes

OWNERS_ONLY = frozenset({"Snapshots", "Resets"})
"""Protocols that only the owner of a sandbox gets, because they change it."""


class AttachedSandbox(RockSandbox):
    """Runs commands and moves files like its owner. `stop` detaches and ends only what was begun through it."""

    async def end(self) -> None:
        try:
            ending = (self.client.json("DELETE", path) for path in self.shells)
            await asyncio.gather(*ending, return_exceptions=True)  # if the sandbox has ended, so have its shells
        finally:
            await self.client.close()


@cache
def attached_type_of(protocols: frozenset[str]) -> type[AttachedSandbox]:
    """Return the class of attached sandboxes that have these protocols."""
    return cast(type[AttachedSandbox], type("AttachedSandbox", (AttachedSandbox, sandbox_type_of(protocols)), {}))


async def attach(owner: Owner, headers: Mapping[str, str], sandbox_id: str) -> AttachedSandbox:
    """Return a sandbox of the service, over connections of its own, which its `stop` closes. Raises `SandboxError` if
    the service has no such sandbox."""
    client = ServiceClient(owner.client.url, headers)
    try:
        found = await client.json("GET", f"{ALE}/sandboxes/{quote(as_bytes(sandbox_id), safe='')}/spec")
        description = SandboxDescription.model_validate(found)
    except BaseException as error:
        await client.close()
        if isinstance(error, ConfigError):
            raise SandboxError(str(error)) from None
        if isinstance(error, ValidationError):
            raise SandboxError(f"The service at {client.url} does not say how {sandbox_id} was started.") from None
        raise
    protocols = (frozenset(PARTS) & frozenset(description.protocols)) - OWNERS_ONLY
    box = attached_type_of(protocols)(description.spec, sandbox_id, owner)
    box.client = client
    return box
