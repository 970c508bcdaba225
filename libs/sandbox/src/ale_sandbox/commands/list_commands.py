"""`ale sandbox ls | rm | prune | image build`: list and remove the sandboxes of this machine, whoever started them."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, TypeVar

from ale.cli.plugins_command import print_table
from ale.errors import AleError, ConfigError
from ale.registry.drivers import build_driver
from ale.registry.installed import list_plugins
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxInfo, SandboxProvider
from ale.specs.sandbox_protocols import Attaches, BuildsImages, Measures, SandboxStats, lacks

T = TypeVar("T")
STATS = ("MEMORY", "CPU", "PIDS", "DISK", "NET IN", "NET OUT")
STATS_TIMEOUT_S = 10.0


def show(name: str | None, as_json: bool, stats: bool) -> None:
    """Print every sandbox; with `stats`, also the resources that it uses."""

    async def list_with_stats(provider: SandboxProvider) -> list[tuple[SandboxInfo, SandboxStats | None]]:
        infos = await provider.list()
        if not stats:
            return [(info, None) for info in infos]
        slots = asyncio.Semaphore(8)
        return list(
            zip(infos, await asyncio.gather(*(_read_stats(provider, info, slots) for info in infos)), strict=True)
        )

    found = _ask_each_provider(name, list_with_stats)
    lines = [(use, info, used) for use, infos in found for info, used in infos]
    if as_json:
        print(
            json.dumps(
                [
                    {
                        "id": i.id,
                        "provider": use,
                        "alive": i.alive,
                        "created_at": i.created_at,
                        "labels": dict(i.labels),
                        **({"stats": used and asdict(used)} if stats else {}),
                    }
                    for use, i, used in lines
                ],
                indent=2,
            )
        )
    elif lines:
        rows = [("ID", "PROVIDER", "STATE", "AGE", *(STATS if stats else ()), "LABELS")]
        rows += [
            (
                i.id,
                use,
                "running" if i.alive else "dead",
                _format_age(i.created_at),
                *(_format_stats(used) if stats else ()),
                " ".join(f"{k}={v}" for k, v in i.labels.items()),
            )
            for use, i, used in lines
        ]
        print_table(rows)
    else:
        print(f"There is no sandbox ({', '.join(use for use, _ in found) or 'no provider answers'}).")


def remove(ids: list[str], name: str | None) -> None:
    """Remove sandboxes by id. Raises `ConfigError` for ids that do not exist, after it has removed the others."""

    async def remove_wanted(provider: SandboxProvider) -> list[str]:
        found = [i.id for i in await provider.list() if i.id in ids]
        for sandbox_id in found:
            await provider.remove(sandbox_id)
        return found

    done = {sandbox_id for _, removed in _ask_each_provider(name, remove_wanted) for sandbox_id in removed}
    for sandbox_id in ids:
        if sandbox_id in done:
            print(sandbox_id)
    missing = [sandbox_id for sandbox_id in ids if sandbox_id not in done]
    if missing:
        raise ConfigError(f"There is no sandbox {', '.join(missing)}; `ale sandbox ls` lists the existing ones.")


def prune(name: str | None) -> None:
    """Remove what processes that have ended left behind."""
    done = [
        sandbox_id
        for _, removed in _ask_each_provider(name, lambda provider: provider.prune())
        for sandbox_id in removed
    ]
    print("\n".join(done) if done else "Nothing was left behind.")


def build_image(name: str, image: str | None, python: bool) -> None:
    """Make a small image of this machine's programs."""
    provider = _provider(name)
    if not isinstance(provider, BuildsImages):
        raise lacks(provider, BuildsImages)
    print(asyncio.run(provider.build_image(image, python=python)))


def _ask_each_provider(name: str | None, work: Callable[[SandboxProvider], Awaitable[T]]) -> list[tuple[str, T]]:
    """Ask each installed provider; the error of one that does not answer is printed, or raised if the user named the
    provider."""
    names = (
        [name] if name else list(dict.fromkeys(info.name for info in list_plugins("sandbox") if info.status == "ok"))
    )

    async def ask_all() -> list[tuple[str, T]]:
        found = []
        for use in names:
            try:
                found.append((use, await work(_provider(use))))
            except AleError as error:
                if name:
                    raise
                print(f"{use}: {error}", file=sys.stderr)
        return found

    return asyncio.run(ask_all())


def _provider(name: str) -> SandboxProvider:
    provider: Any = build_driver("sandbox", PluginChoice(use=name), DriverContext(run_id="cli"))
    assert isinstance(provider, SandboxProvider)
    return provider


async def _read_stats(provider: SandboxProvider, info: SandboxInfo, slots: asyncio.Semaphore) -> SandboxStats | None:
    """Return the resources that a sandbox uses; None if its owner does not answer."""
    if not isinstance(provider, Attaches):
        return None
    try:
        async with slots, asyncio.timeout(STATS_TIMEOUT_S), await provider.attach(info.id) as box:
            return await box.stats() if isinstance(box, Measures) else None
    except (AleError, TimeoutError):
        return None


def _format_stats(used: SandboxStats | None) -> tuple[str, ...]:
    """Format the columns of `STATS`."""
    found = used or SandboxStats()
    cpu, pids = found.cpu_s, found.pids
    sizes = [
        "-" if size is None else f"{size / 2**20:.1f}M"
        for size in (found.memory_bytes, found.disk_bytes, found.network_in_bytes, found.network_out_bytes)
    ]
    return (sizes[0], "-" if cpu is None else f"{cpu:.1f}s", "-" if pids is None else str(pids), *sizes[1:])


def _format_age(since: float) -> str:
    seconds = max(0.0, time.time() - since)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
