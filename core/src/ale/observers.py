"""Observers as plugins: built with their settings, started before the run is announced, closed after its end.

`ALE_PLUGINS=a,b` limits which are loaded, so that a run that an observer breaks can go without it: one that is not
named there is left out with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from ale.config_base import PluginChoice
from ale.environment import chosen_plugins
from ale.hooks import Hooks
from ale.installed import list_plugins
from ale.plugins import FoundObserver, build_driver, load_driver_class, open_driver
from ale.specs.driver import Driver, DriverContext
from ale.specs.kinds import HOOKS
from ale.validation import named, one_line

log = logging.getLogger("ale.hooks")


async def open_observers(choices: Sequence[PluginChoice], context: DriverContext, stack: AsyncExitStack) -> Hooks:
    """The hooks of a run with these observers, which `stack` closes. Raises `ConfigError`, `PluginError`."""
    hooks = Hooks()
    for i, choice in enumerate(choices):
        if not _may_load(choice.use):
            log.warning("ALE_PLUGINS leaves the observer '%s' out of this run", choice.use)
            continue
        inner = AsyncExitStack()
        stack.push_async_callback(_closed, choice.use, inner)
        driver = await open_driver(inner, HOOKS, choice, context, f"observers.{i}")
        hooks.register(f"{choice.use}#{i}" if choice in choices[:i] else choice.use, _hooked(driver))
    return hooks


async def _closed(name: str, inner: AsyncExitStack) -> None:
    """Close an observer; one that raises is logged: the run is over, and it was no part of it."""
    try:
        await inner.aclose()
    except Exception as error:
        log.warning("the observer '%s' failed in close: %s", name, named(error))


def command_hooks() -> Hooks:
    """The installed observers that add commands to `ale`; one that cannot be loaded is logged and left out."""
    hooks = Hooks()
    for info in list_plugins(HOOKS):
        if not _may_load(info.name) or info.status in ("broken", "incompatible"):
            continue
        choice = PluginChoice(use=f"{info.package}:{info.name}")
        try:
            cls = load_driver_class(HOOKS, choice.use)
            if issubclass(cls, FoundObserver) or hasattr(cls, "ale_commands"):
                hooks.register(choice.use, _hooked(build_driver(HOOKS, choice, DriverContext())))
        except Exception as error:
            log.warning("the observer '%s' adds no commands: %s", info.name, one_line(error))
    return hooks


def _hooked(driver: Driver) -> Any:
    """What carries the hooks: the driver, or the module or object that it stands for."""
    return driver.observer if isinstance(driver, FoundObserver) else driver


def _may_load(name: str) -> bool:
    chosen = chosen_plugins()
    return chosen is None or name.rpartition(":")[2] in chosen
