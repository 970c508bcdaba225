"""Snapshots at a ROCK service, as the provider `rock` makes, lists and removes them.

A snapshot lies on the disk of the worker whose sandbox it was made of. An unnamed one gets a name that holds the
process that made it. It is removed when its provider closes, or, if that process was killed, by the next start on that
machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from ale.errors import AleError, ConfigError
from ale_rock.client.service_client import ALE, ServiceClient
from ale_sandbox.host.owned_folders import is_running, this_process
from ale_sandbox.host.threads import await_completion

SNAPSHOT_S = 300.0
UNNAMED = "unnamed-"
OWNED = re.compile(r"(?:.*:)?ale-[0-9a-f]{12}-unnamed-([0-9a-f]{8})-(\d+-\d+)-[0-9a-f]{8}")
"""The name of an unnamed snapshot: it holds the machine and the process that made it."""


class ServiceSnapshots:
    """The snapshots of one provider's user."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client
        self._unnamed: set[str] = set()
        """The unnamed snapshots of this provider."""

    async def take(self, path: str, name: str | None) -> str:
        """Make a snapshot of the sandbox at a path; returns the name from which others start. Raises `ConfigError` or
        `SandboxError`; a call that is cancelled makes none, or replaces one."""
        if name is not None and name.startswith(UNNAMED):
            raise ConfigError(f"A snapshot cannot be named {name!r}: do not begin with {UNNAMED!r}.")
        given = name or f"{UNNAMED}{_this_machine_short()}-{this_process()}-{secrets.token_hex(4)}"
        there = await self.names() if name is not None else []
        replaces = any(re.fullmatch(rf"(?:.*:)?ale-[0-9a-f]{{12}}-{re.escape(given)}", each) for each in there)
        try:
            answer = await self._client.json("POST", f"{path}/snapshot", {"name": given}, SNAPSHOT_S)
        except asyncio.CancelledError:
            if not replaces:
                await await_completion(asyncio.ensure_future(self._forget(path, given)))
            raise
        taken: str = answer["name"]
        if name is None:
            self._unnamed.add(taken)
        return taken

    async def _forget(self, path: str, given: str) -> None:
        with suppress(AleError):  # the sandbox has ended, or the service; the next start removes it
            await self._client.json("DELETE", f"{path}/snapshot", query={"name": given})

    async def names(self) -> list[str]:
        """Return the names of the user's snapshots."""
        found: list[str] = (await self._client.json("GET", f"{ALE}/snapshots"))["snapshots"]
        return found

    async def remove(self, name: str) -> None:
        """Remove a snapshot. It is idempotent. Raises `SandboxError` if its worker cannot, because a sandbox runs from
        it."""
        await self._client.json("DELETE", f"{ALE}/snapshots", query={"name": name})
        self._unnamed.discard(name)

    async def close(self) -> None:
        """Remove the unnamed snapshots of this provider."""
        for name in list(self._unnamed):
            with suppress(AleError):  # the next start removes it
                await self.remove(name)

    async def remove_ownerless(self) -> None:
        """Remove unnamed snapshots of this machine whose process was killed."""
        for name in await self.names():
            owned = OWNED.fullmatch(name)
            if owned is not None and owned[1] == _this_machine_short() and not is_running(owned[2]):
                await self.remove(name)


def this_machine() -> str:
    """Return an id of this boot of the machine and this process namespace, in which process ids are unique."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), "/proc/self/ns/pid"
    if not boot.exists():
        return "unknown"
    return f"{boot.read_text().strip()}.{os.stat(namespace).st_ino}"


def _this_machine_short() -> str:
    return hashlib.sha256(this_machine().encode()).hexdigest()[:8]
