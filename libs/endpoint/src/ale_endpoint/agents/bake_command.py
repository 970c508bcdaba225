"""`ale sandbox bake`: installs the agents of a run into its images before it starts."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import islice
from typing import Any

from ale.config.episode import PluginKind
from ale.registry.drivers import build_driver, open_driver
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.task import TRAIN
from ale_endpoint.agents.baking import Bakery
from ale_endpoint.agents.command_agent import CommandAgent
from ale_train.commands.arguments import Overrides, RunFile
from ale_train.config.run import RunConfig

MOST_TASKS = 2000
"""How many tasks of each split are checked for the images that they need."""


def bake(file: RunFile, overrides: Overrides = None) -> None:
    """Install a run's agents into its images before it starts; prints agent, image and snapshot."""
    from ale_train.config.load import load_run_config  # not above: `ale --help` imports this module

    asyncio.run(_bake(load_run_config(file, overrides or []).run))


async def _bake(config: RunConfig) -> None:
    context = DriverContext(run_id="cli", seed=config.seed, labels={"run": "cli"})
    agents = (driver for driver in _drivers(config, "scaffold", context) if isinstance(driver, CommandAgent))
    recipes = {agent.recipe for agent in agents if agent.recipe is not None}
    if not recipes:
        print("No agent of this run has to be installed into an image.")
        return
    images = sorted(_images(config, context), key=str)
    bakery = Bakery()
    async with AsyncExitStack() as stack:
        for choice in _choices(config, "sandbox"):
            provider: Any = await open_driver(stack, "sandbox", choice, context)
            for recipe in sorted(recipes, key=str):
                for image in images:
                    snapshot = await bakery.snapshot(recipe, image, provider)
                    base = image or provider.default_image or "-"
                    print(f"{recipe.name}\t{base}\t{snapshot or 'is there'}")


def _images(config: RunConfig, context: DriverContext) -> set[str | None]:
    images: set[str | None] = set()
    for path, kind, choice in config.plugins():
        if kind == "tasks":
            source: Any = build_driver(kind, PluginChoice(use=choice.use, settings=choice.settings), context)
            for split in _splits(config, path):
                images |= {task.image for task in islice(source.tasks(split), MOST_TASKS)}
    return images


def _splits(config: RunConfig, path: str) -> list[str]:
    """Return the splits of the task source at this path that the run takes tasks from."""
    trained = [] if path.startswith("eval.") else [TRAIN]
    return [*dict.fromkeys([*trained, *(config.eval.splits(path) if config.eval is not None else ())])]


def _drivers(config: RunConfig, kind: PluginKind, context: DriverContext) -> list[Any]:
    return [build_driver(kind, choice, context) for choice in _choices(config, kind)]


def _choices(config: RunConfig, kind: PluginKind) -> list[PluginChoice]:
    found = [PluginChoice(use=c.use, settings=c.settings) for _, each, c in config.plugins() if each == kind]
    return [choice for i, choice in enumerate(found) if choice not in found[:i]]
