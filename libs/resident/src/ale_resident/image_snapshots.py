"""Snapshots that are images of a container engine: `ale-snapshot:NAME`.

An image inherits its container's labels, so it says whose it is. Unnamed ones go with their provider, and where that was
killed, with the next start; so does what lost its name to a newer snapshot, once nothing runs from it any more.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ale.errors import ConfigError, SandboxError
from ale_resident.owner import runs
from ale_resident.threads import to_its_end

if TYPE_CHECKING:
    from ale_resident.engine import Engine

REPOSITORY, UNNAMED, OWNER = "ale-snapshot:", "unnamed-", "ale.owner"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
SETTLE_S = 60.0
"""An image without a name that is younger may be one that is just being given its name."""


@dataclass(frozen=True)
class FoundImage:
    """An image that was made of a sandbox's container."""

    id: str
    names: tuple[str, ...]
    labels: Mapping[str, str]
    created_at: float


def is_owned(labels: Mapping[str, str]) -> bool:
    """Whether the process that made a container, or an image of it, runs."""
    return runs(labels.get(OWNER, ""))


def check_name(name: str | None) -> None:
    """See that a snapshot can be called so. Raises `ConfigError`."""
    if name is not None and (not NAME.fullmatch(name) or name.startswith(UNNAMED)):
        raise ConfigError(
            f"A snapshot cannot be named {name!r}; use up to 64 letters, digits, '-', '_' and '.', and not {UNNAMED!r} "
            "to begin with."
        )


async def take(engine: Engine, container: str, name: str | None, to_remove: set[str]) -> str:
    """Keep a container's file system; the image's name. What goes with the provider is put into `to_remove`.

    Raises `ConfigError` where it cannot be called so.
    """
    check_name(name)
    image = f"{REPOSITORY}{name or UNNAMED + secrets.token_hex(8)}"
    replaced = [found.id for found in await engine.images() if image in found.names] if name is not None else []
    if name is None:
        to_remove.add(image)
    try:
        await to_its_end(asyncio.ensure_future(engine.commit(container, image)))
    except asyncio.CancelledError:
        if name is None:
            await engine.remove_image(image)
        raise
    to_remove |= {old for old in replaced if not await engine.remove_image(old)}
    return image


async def names(engine: Engine) -> list[str]:
    """All snapshots."""
    return sorted(name for image in await engine.images() for name in image.names if name.startswith(REPOSITORY))


async def remove(engine: Engine, name: str) -> None:
    """Remove one. Raises `SandboxError` where a container runs from it."""
    if name.startswith(REPOSITORY) and not await engine.remove_image(name):
        raise SandboxError(f"The snapshot {name} is in use: stop the sandboxes that were started from it first.")


async def sweep(engine: Engine) -> None:
    """Remove what dead owners left."""
    for image in await engine.images():
        unnamed = [name for name in image.names if name.startswith(REPOSITORY + UNNAMED) and not is_owned(image.labels)]
        nameless = [] if image.names or time.time() - image.created_at < SETTLE_S else [image.id]
        for each in unnamed + nameless:
            with suppress(SandboxError):  # the next one tries again
                await engine.remove_image(each)
