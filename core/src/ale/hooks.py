"""The observers of a run: pluggy, with what may go wrong in an observer kept away from the run.

Each observer of the entry-point group `ale.hooks` is loaded by itself; one that cannot be imported is logged and left
out. A call that raises is logged. In a *veto* hook an error is a refusal: who cannot say yes has not said yes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from ale.environment import chosen_plugins

log = logging.getLogger("ale.hooks")
GROUP = "ale.hooks"


class Hooks:
    """The observers of one run. Without observers a call costs next to nothing."""

    def __init__(self, observers: Iterable[tuple[str, Any]] = ()) -> None:
        self._manager: Any = None
        pairs = list(observers)
        if not pairs:
            return
        import pluggy

        from ale.specs.events import PROJECT, HookSpecs

        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(HookSpecs)
        for name, observer in pairs:
            try:
                self._manager.register(observer, name)
            except (pluggy.PluginValidationError, ValueError) as error:
                log.warning("the observer '%s' is left out: %s", name, error)

    def watches(self, name: str) -> bool:
        """Whether anybody implements this hook."""
        return self._manager is not None and bool(getattr(self._manager.hook, name).get_hookimpls())

    def _implementations(self, name: str) -> list[Any]:
        # Called one by one, last registered first as pluggy would: one that raises must not silence the others.
        return list(reversed(getattr(self._manager.hook, name).get_hookimpls())) if self._manager is not None else []

    def call(self, name: str, **arguments: Any) -> None:
        """Tell every observer; one that raises is logged."""
        for implementation in self._implementations(name):
            try:
                _invoke(implementation, arguments)
            except Exception as error:
                log.warning(
                    "the observer '%s' failed in %s: %s: %s",
                    implementation.plugin_name,
                    name,
                    type(error).__name__,
                    error,
                )

    def refusal(self, name: str, **arguments: Any) -> str | None:
        """Ask a veto hook: the first sentence that refuses; an observer that raises refuses."""
        for implementation in self._implementations(name):
            try:
                reason = _invoke(implementation, arguments)
            except Exception as error:
                reason = f"the observer '{implementation.plugin_name}' failed: {type(error).__name__}: {error}"
                log.warning("%s in %s", reason, name)
            if reason is not None:
                return str(reason)
        return None


def _invoke(implementation: Any, arguments: dict[str, Any]) -> Any:
    return implementation.function(*(arguments[name] for name in implementation.argnames))


def load_hooks() -> Hooks:
    """The installed observers; `ALE_PLUGINS=a,b` limits which are loaded."""
    chosen = chosen_plugins()
    found = []
    for entry in metadata.entry_points(group=GROUP):
        if chosen is not None and entry.name not in chosen:
            continue
        try:
            loaded = entry.load()
            found.append((entry.name, loaded() if isinstance(loaded, type) else loaded))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: an observer cannot end a run
            log.warning(
                "the observer '%s' cannot be loaded and is left out: %s: %s", entry.name, type(error).__name__, error
            )
    return Hooks(found)
