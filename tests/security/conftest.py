"""A world for each provider, once for all attacks. `everywhere` makes a line of the report for each attack and
provider."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from support.sandbox_providers import answers, provider_of

from .attack import Attack
from .host import Host
from .images import make_image
from .world import PROVIDERS, World

MARKS = {"local": pytest.mark.bwrap, "docker": pytest.mark.docker, "podman": pytest.mark.podman}


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """The host's victims."""
    if os.getuid() != 0:
        pytest.skip("the witnesses look at everybody's processes, which takes root")
    made = Host(tmp_path_factory.mktemp("host"))
    yield made
    made.close()


class Worlds:
    """Those that tests have asked for; all of them end with the session."""

    def __init__(self, host: Host, exits: AsyncExitStack) -> None:
        self.host, self.exits = host, exits
        self.started: dict[str, World] = {}
        self.images: dict[str, str] = {}
        """Of container engines, by name."""

    async def get(self, name: str) -> World:
        """The world of a provider; skips the test where the provider does not work here."""
        engine = name.split()[0]
        if engine == "local" and shutil.which("bwrap") is None:
            pytest.skip("bubblewrap is not installed")
        if engine != "local" and not await asyncio.to_thread(answers, engine):
            pytest.skip(f"{engine} does not answer")
        if name not in self.started:
            image = None if engine == "local" else await self.image(engine)
            provider = await self.exits.enter_async_context(provider_of(**PROVIDERS[name]))
            world = World(name, provider, self.host, image)
            await world.start()
            self.exits.push_async_callback(world.close)
            self.started[name] = world
        return self.started[name]

    async def image(self, engine: str) -> str:
        """The image that an engine's containers are attacked from; removed at the end."""
        if engine not in self.images:
            provider = await self.exits.enter_async_context(provider_of(**PROVIDERS[f"{engine} as root"]))
            self.images[engine] = await make_image(provider)
            self.exits.push_async_callback(provider.engine.remove_image, self.images[engine])
        return self.images[engine]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def worlds(host: Host) -> AsyncIterator[Worlds]:
    """All worlds."""
    async with AsyncExitStack() as exits:
        yield Worlds(host, exits)


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def no_spares(worlds: Worlds) -> AsyncIterator[None]:
    """Between files, which other tests may run beside, no sandboxes wait."""
    yield
    for world in worlds.started.values():
        await world.rest()


@pytest_asyncio.fixture(loop_scope="session")
async def world(request: pytest.FixtureRequest, worlds: Worlds) -> World:
    """The world of the provider that is the parameter."""
    return await worlds.get(request.param)


def everywhere(attacks: Iterable[Attack]) -> pytest.MarkDecorator:
    """Parametrize a test with `world` and `attack`: each attack on each provider, and as root where that says
    something."""
    cases = [
        pytest.param(name, attack, marks=MARKS[name.split()[0]], id=f"{name}: {attack.name}")
        for name in PROVIDERS
        for attack in attacks
        if (attack.root or not name.endswith("root")) and (not attack.only or name.split()[0] in attack.only)
    ]
    return pytest.mark.parametrize(("world", "attack"), cases, indirect=["world"])


def each_provider(*names: str) -> pytest.MarkDecorator:
    """Parametrize a test with `world`: each provider, or those that are named."""
    chosen = names or ("local", "docker", "podman")
    params = [pytest.param(name, marks=MARKS[name.split()[0]], id=name) for name in chosen]
    return pytest.mark.parametrize("world", params, indirect=True)
