"""What `ale doctor` says about Podman: whether it answers where a run would look for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from ale.cli.doctor import Finding
from ale.errors import AleError
from ale_podman.engine import PodmanEngine


def check() -> Iterator[Finding]:
    """Yield whether Podman answers, and why not."""
    try:
        asyncio.run(_open())
    except AleError as error:
        yield Finding("Podman", "missing", str(error))
    else:
        yield Finding("Podman", "ok", "it answers, for runs with sandbox: podman")


async def _open() -> None:
    engine = PodmanEngine(None)
    await engine.open()
    await engine.close()
