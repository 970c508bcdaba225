"""Snapshots that are images of a container engine: `ale-snapshot:NAME`.

An image inherits its container's labels, which name the owner. Unnamed ones are removed when their provider closes, or
at the next start if it was killed; so is one whose name a newer snapshot took, once no container runs from it."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress

from ale.errors import ConfigError, SandboxError
from ale_sandbox.containers.engine import Engine
from ale_sandbox.host.owned_folders import is_running
from ale_sandbox.host.threads import await_completion

REPOSITORY, UNNAMED, OWNER = "ale-snapshot:", "unnamed-", "ale.owner"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
NOT_FROZEN = re.compile(r"unable to freeze|runc pause \S+` failed")
FREEZE_ATTEMPTS = 5
SETTLE_S = 60.0
"""A younger image without a name may just be getting its name."""


def is_owned(labels: Mapping[str, str]) -> bool:
    """Return whether the process that made a container, or the container of an image, still runs."""
    return is_running(labels.get(OWNER, ""))


def check_name(name: str | None) -> None:
    """Check the name of a new snapshot. Raises `ConfigError` if it is not allowed."""
    if name is not None and (not NAME.fullmatch(name) or name.startswith(UNNAMED)):
        raise ConfigError(
            f"A snapshot cannot be named {name!r}; use up to 64 letters, digits, '-', '_' and '.', and do not begin "
            f"with {UNNAMED!r}."
        )


async def take(engine: Engine, container: str, name: str | None, to_remove: set[str]) -> str:
    """Save a container's file system as an image and return its name; unnamed ones are added to `to_remove`.

    A call that is cancelled leaves no image, unless it has replaced an older one: that name would be lost. Raises
    `ConfigError` if the name is not allowed.
    """
    check_name(name)
    image = f"{REPOSITORY}{name or UNNAMED + secrets.token_hex(8)}"
    replaced = [found.id for found in await engine.images() if image in found.names] if name is not None else []
    if name is None:
        to_remove.add(image)
    try:
        await await_completion(asyncio.ensure_future(commit(engine, container, image)))
    except asyncio.CancelledError:
        if not replaced:
            await engine.remove_image(image)
        raise
    to_remove |= {old for old in replaced if not await engine.remove_image(old)}
    return image


async def commit(engine: Engine, container: str, image: str) -> None:
    """Save a container's file system as an image while its processes are frozen.

    With control groups of version 1 the runtime may fail to freeze processes that fork at that moment, all the more on
    a busy machine (runc's pull request 2791 calls it a game of chances). It thaws them, and the next attempt succeeds.
    """
    for attempt in range(1, FREEZE_ATTEMPTS + 1):
        try:
            return await engine.commit(container, image)
        except SandboxError as error:
            if attempt == FREEZE_ATTEMPTS or not NOT_FROZEN.search(str(error)):
                raise


async def names(engine: Engine) -> list[str]:
    """All snapshots."""
    return sorted(name for image in await engine.images() for name in image.names if name.startswith(REPOSITORY))


async def remove(engine: Engine, name: str) -> None:
    """Remove a snapshot. Raises `SandboxError` if a container runs from it."""
    if name.startswith(REPOSITORY) and not await engine.remove_image(name):
        raise SandboxError(f"The snapshot {name} is in use: stop the sandboxes that were started from it first.")


async def sweep(engine: Engine) -> None:
    """Remove the unnamed snapshots of processes that have ended."""
    for image in await engine.images():
        unnamed = [name for name in image.names if name.startswith(REPOSITORY + UNNAMED) and not is_owned(image.labels)]
        nameless = [] if image.names or time.time() - image.created_at < SETTLE_S else [image.id]
        for each in unnamed + nameless:
            with suppress(SandboxError):  # the next sweep tries again
                await engine.remove_image(each)
