"""`ale sandbox`: what providers have running on this machine, whoever started it, and how to get rid of it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, TypeVar

from ale.cli.plugins_command import print_table
from ale.config_base import PluginChoice
from ale.errors import AleError, ConfigError
from ale.installed import list_plugins
from ale.plugins import build_driver
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxInfo, SandboxProvider, SandboxStats

T = TypeVar("T")
STATS = ("MEMORY", "CPU", "PIDS", "DISK", "NET IN", "NET OUT")
STATS_TIMEOUT_S = 10.0


def show(name: str | None, as_json: bool, stats: bool) -> None:
    """Print every sandbox that there is; with `stats`, also what it uses."""

    async def listed(provider: SandboxProvider) -> list[tuple[SandboxInfo, SandboxStats | None]]:
        infos = await provider.list()
        if not stats:
            return [(info, None) for info in infos]
        slots = asyncio.Semaphore(8)
        return list(zip(infos, await asyncio.gather(*(_used(provider, info, slots) for info in infos)), strict=True))

    found = _of_each(name, listed)
    lines = [(use, info, used) for use, infos in found for info, used in infos]
    if as_json:
        print(json.dumps([
            {"id": i.id, "provider": use, "alive": i.alive, "created_at": i.created_at, "labels": dict(i.labels),
             **({"stats": used and asdict(used)} if stats else {})}
            for use, i, used in lines
        ], indent=2))  # fmt: skip
    elif lines:
        rows = [("ID", "PROVIDER", "STATE", "AGE", *(STATS if stats else ()), "LABELS")]
        rows += [
            (i.id, use, "running" if i.alive else "dead", _age(i.created_at), *(_figures(used) if stats else ()),
             " ".join(f"{k}={v}" for k, v in i.labels.items()))
            for use, i, used in lines
        ]  # fmt: skip
        print_table(rows)
    else:
        print(f"No sandbox is there ({', '.join(use for use, _ in found) or 'no provider answers'}).")


def remove(ids: list[str], name: str | None) -> None:
    """Remove sandboxes by id. Raises `ConfigError` for those that there are not, after the others are gone."""

    async def those(provider: SandboxProvider) -> list[str]:
        here = [i.id for i in await provider.list() if i.id in ids]
        for sandbox_id in here:
            await provider.remove(sandbox_id)
        return here

    gone = {sandbox_id for _, removed in _of_each(name, those) for sandbox_id in removed}
    for sandbox_id in ids:
        if sandbox_id in gone:
            print(sandbox_id)
    missing = [sandbox_id for sandbox_id in ids if sandbox_id not in gone]
    if missing:
        raise ConfigError(f"There is no sandbox {', '.join(missing)}; `ale sandbox ls` lists those that there are.")


def prune(name: str | None) -> None:
    """Remove what owners that are gone have left."""
    gone = [sandbox_id for _, removed in _of_each(name, lambda provider: provider.prune()) for sandbox_id in removed]
    print("\n".join(gone) if gone else "Nothing was left behind.")


def build_image(name: str, image: str | None, python: bool) -> None:
    """Make a small image of this machine's programs."""
    print(asyncio.run(_provider(name).build_image(image, python=python)))


def _of_each(name: str | None, work: Callable[[SandboxProvider], Awaitable[T]]) -> list[tuple[str, T]]:
    """What each installed provider answers; one that does not is told of, unless it was named."""
    names = (
        [name] if name else list(dict.fromkeys(info.name for info in list_plugins("sandbox") if info.status == "ok"))
    )

    async def every() -> list[tuple[str, T]]:
        found = []
        for use in names:
            try:
                found.append((use, await work(_provider(use))))
            except AleError as error:
                if name:
                    raise
                print(f"{use}: {error}", file=sys.stderr)
        return found

    return asyncio.run(every())


def _provider(name: str) -> SandboxProvider:
    provider: Any = build_driver("sandbox", PluginChoice(use=name), DriverContext(run_id="cli"))
    assert isinstance(provider, SandboxProvider)
    return provider


async def _used(provider: SandboxProvider, info: SandboxInfo, slots: asyncio.Semaphore) -> SandboxStats | None:
    """What a sandbox uses, by its owner's word; None where that one does not answer."""
    try:
        async with slots, asyncio.timeout(STATS_TIMEOUT_S), await provider.attach(info.id) as box:
            return await box.stats()
    except (AleError, TimeoutError):
        return None


def _figures(used: SandboxStats | None) -> tuple[str, ...]:
    """The columns of `STATS`."""
    found = used or SandboxStats()
    cpu, pids = found.cpu_s, found.pids
    sizes = [
        "-" if size is None else f"{size / 2**20:.1f}M"
        for size in (found.memory_bytes, found.disk_bytes, found.network_in_bytes, found.network_out_bytes)
    ]
    return (sizes[0], "-" if cpu is None else f"{cpu:.1f}s", "-" if pids is None else str(pids), *sizes[1:])


def _age(since: float) -> str:
    seconds = max(0.0, time.time() - since)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
