"""Observers as plugins: they are built with their settings, started before the run is announced and closed after it.

`ALE_PLUGINS=a,b` limits which observers are loaded, so that a run can go on without an observer that breaks it: an
observer that is not named there is left out with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack

from ale.registry.drivers import FoundObserver, open_driver
from ale.registry.foreign_code import catch_all
from ale.registry.hooks import Hooks
from ale.registry.validation import describe_error
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.kinds import HOOKS

log = logging.getLogger("ale.hooks")


async def open_observers(
    choices: Sequence[PluginChoice], context: DriverContext, stack: AsyncExitStack, allowed: frozenset[str] | None
) -> Hooks:
    """Return the hooks of a run with these observers, which `stack` closes; `allowed` names those that may be loaded
    (None: all).

    Raises `ConfigError`, `PluginError`.
    """
    hooks = Hooks()
    for i, choice in enumerate(choices):
        if allowed is not None and choice.label.rpartition(":")[2] not in allowed:
            log.warning("ALE_PLUGINS leaves the observer '%s' out of this run", choice.use)
            continue
        inner = AsyncExitStack()
        stack.push_async_callback(_close_observer, choice.use, inner)
        driver = await open_driver(inner, HOOKS, choice, context, f"observers.{i}")
        carrier = driver.observer if isinstance(driver, FoundObserver) else driver
        taken = choice.label in [other.label for other in choices[:i]]
        hooks.register(f"{choice.label}#{i}" if taken else choice.label, carrier)
    return hooks


async def _close_observer(name: str, inner: AsyncExitStack) -> None:
    """Close an observer; its errors are only logged, because the run is over and does not depend on it."""
    with catch_all() as caught:
        await inner.aclose()
    for error in caught:
        log.warning("the observer '%s' failed in close: %s", name, describe_error(error))
