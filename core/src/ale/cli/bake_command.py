"""`ale sandbox bake`: the agents of a run put into its images, before it starts."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from ale.config import load_run_config
from ale.config_base import PluginChoice
from ale.plugins import build_driver, open_driver
from ale.rollout.baking import Bakery
from ale.run_config import Kind, RunConfig
from ale.specs.driver import DriverContext
from ale.task import TRAIN

MOST_TASKS = 2000
"""Of each split, as many are looked at for the images that they want."""


def bake_agents(file: Path, overrides: list[str]) -> None:
    """Put each agent that the run names into each image that its tasks want; prints the snapshots."""
    asyncio.run(_bake(load_run_config(file, overrides).run))


async def _bake(config: RunConfig) -> None:
    context = DriverContext(run_id="cli", seed=config.seed, labels={"run": "cli"})
    recipes = {driver.recipe for driver in _drivers(config, "scaffold", context)} - {None}
    if not recipes:
        print("No agent of this run has to be put into an image.")
        return
    images = sorted(_images(config, context), key=str)
    bakery = Bakery()
    async with AsyncExitStack() as stack:
        for choice in _choices(config, "sandbox"):
            provider: Any = await open_driver(stack, "sandbox", choice, context)
            for recipe in sorted(recipes, key=str):
                for image in images:
                    snapshot = await bakery.snapshot(recipe, image, provider)
                    print(
                        f"{recipe.name}\t{image or getattr(provider.config, 'image', None) or '-'}\t{snapshot or 'is there'}"
                    )


def _images(config: RunConfig, context: DriverContext) -> set[str | None]:
    return {
        task.image
        for source in _drivers(config, "tasks", context)
        for split in dict.fromkeys((TRAIN, config.eval.split))
        for task in islice(source.tasks(split), MOST_TASKS)
    }


def _drivers(config: RunConfig, kind: Kind, context: DriverContext) -> list[Any]:
    return [build_driver(kind, choice, context) for choice in _choices(config, kind)]


def _choices(config: RunConfig, kind: Kind) -> list[PluginChoice]:
    found = [PluginChoice(use=c.use, settings=c.settings) for _, each, c in config.plugins() if each == kind]
    return [choice for i, choice in enumerate(found) if choice not in found[:i]]
