"""What `ale doctor` says about Docker: whether it answers where a run would look for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from ale.cli.doctor import Finding
from ale.errors import AleError
from ale_docker.engine import DockerEngine


def check() -> Iterator[Finding]:
    """Yield whether Docker answers, and why not."""
    try:
        asyncio.run(_open())
    except AleError as error:
        yield Finding("Docker", "missing", str(error))
    else:
        yield Finding("Docker", "ok", "it answers, for runs with sandbox: docker")


async def _open() -> None:
    engine = DockerEngine(None, None)
    await engine.open()
    await engine.close()
