"""Snapshots that are images: whose they are, and what is left of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Collection
from typing import Any

import pytest
from support.sandbox_providers import provider_of

from ale.errors import ConfigError
from ale.specs.sandbox import SandboxSpec
from ale_sandbox.containers.engine import FoundImage
from ale_sandbox.containers.image_snapshots import OWNER, is_owned
from ale_sandbox.host.owned_folders import this_process

OWNER_PROGRAM = """
import asyncio, sys
from ale.registry.drivers import build_driver
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
async def main():
    provider = build_driver("sandbox", PluginChoice(use=sys.argv[1]), DriverContext())
    await provider.start()
    box = await provider.start_sandbox(SandboxSpec(files={"state": b"kept"}))
    print(await box.snapshot(), await box.snapshot(sys.argv[2]), flush=True)
    await box.exec("sleep 4712")
asyncio.run(main())
"""


async def own_images(provider: Any, but: Collection[str] = ()) -> dict[str, FoundImage]:
    """The images that this process made, by their ids; other tests of it may have made some before."""
    found: list[FoundImage] = await provider.engine.images()
    return {image.id: image for image in found if image.labels[OWNER] == this_process() and image.id not in but}


async def test_a_killed_owners_unnamed_snapshots_go_with_the_next_start_and_named_ones_stay(
    provider: Any, engine: str
) -> None:
    command = [sys.executable, "-c", OWNER_PROGRAM, engine]
    owner = await asyncio.to_thread(
        subprocess.Popen, [*command, f"test-{os.getpid()}-{engine}"], stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    unnamed, named = (await asyncio.to_thread(owner.stdout.readline)).decode().split()
    try:
        await provider.prune()
        assert {unnamed, named} <= set(await provider.snapshots()), "while it runs they are its own"
        owner.kill()
        owner.wait()
        async with provider_of(engine) as other:
            assert unnamed not in await other.snapshots()
            async with await other.start_sandbox(SandboxSpec(from_snapshot=named)) as box:
                assert await box.download("state") == b"kept"
    finally:
        await provider.remove_snapshot(named)
    assert named not in await provider.snapshots()


async def test_an_image_that_lost_its_name_goes_when_nothing_runs_from_it(engine: str) -> None:
    async with provider_of(engine) as provider:
        before = await own_images(provider)
        box = await provider.start_sandbox(SandboxSpec())
        name = await box.snapshot(f"test-{os.getpid()}-again")
        fork = await provider.start_sandbox(SandboxSpec(from_snapshot=name))
        assert await box.snapshot(f"test-{os.getpid()}-again") == name
        assert sorted(image.names for image in (await own_images(provider, before)).values()) == [(), (name,)]
        await fork.stop()
        await provider.remove_snapshot(name)
    async with provider_of(engine) as other:
        assert await own_images(other, before) == {}


async def test_bad_names_are_refused(provider: Any) -> None:
    async with await provider.start_sandbox(SandboxSpec()) as box:
        for name in ("a:b", "unnamed-1", "../x", "x" * 65):
            with pytest.raises(ConfigError, match="cannot be named"):
                await box.snapshot(name)
    await provider.remove_snapshot("ale-base:1")
    assert await provider.engine.find_image("ale-base:1"), "it is no snapshot"


def test_a_process_is_known_by_its_start_too() -> None:
    own = this_process()
    assert is_owned({OWNER: own})
    assert not is_owned({OWNER: f"{os.getpid()}-1"})
    assert not is_owned({OWNER: "999999-1"})
    assert not is_owned({})
