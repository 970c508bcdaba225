"""The observers of a run: pluggy, with what may go wrong in an observer kept away from the run.

1. Each observer of the entry-point group `ale.hooks` is loaded by itself; one that cannot be imported, or whose hooks
   do not fit `ale.specs.events`, is logged and left out.
2. `Hooks.call` tells every observer; one that raises is logged, and the others are told all the same.
3. `Hooks.refusal` asks a *veto* hook; an error is a refusal: who cannot say yes has not said yes.
Without observers a call costs one comparison.
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
    """The observers of one run."""

    def __init__(self, observers: Iterable[tuple[str, Any]] = ()) -> None:
        self._hooks: dict[str, list[Any]] = {}
        self._manager: Any = None
        for name, observer in observers:
            self._register(name, observer)
        if self._manager is not None:
            for hook in vars(self._manager.hook).values():
                # Kept as a list, last registered first as in pluggy: each is called by itself, so that one that
                # raises does not silence the others.
                self._hooks[hook.name] = list(reversed(hook.get_hookimpls()))

    def _register(self, name: str, observer: Any) -> None:
        import pluggy

        from ale.specs.events import PROJECT, HookSpecs

        if self._manager is None:
            self._manager = pluggy.PluginManager(PROJECT)
            self._manager.add_hookspecs(HookSpecs)
        try:
            self._manager.register(observer, name)
            self._manager.check_pending()
            wrappers = [c.name for c in self._manager.get_hookcallers(observer) or () if _wraps(c, observer)]
            if wrappers:
                raise ValueError(f"{', '.join(wrappers)} is a wrapper, and the hooks of ALE cannot be wrapped")
        except Exception as error:
            log.warning("the observer '%s' is left out: %s", name, _reason(error))
            if self._manager.get_plugin(name) is observer:
                self._manager.unregister(name=name)

    def watches(self, name: str) -> bool:
        """Whether anybody implements this hook."""
        return bool(self._hooks.get(name))

    def call(self, name: str, **arguments: Any) -> None:
        """Tell every observer; one that raises is logged."""
        if not self._hooks:
            return
        for implementation in self._hooks[name]:
            try:
                _invoke(implementation, arguments)
            except (Exception, SystemExit) as error:
                log.warning("the observer '%s' failed in %s: %s", implementation.plugin_name, name, _named(error))

    def refusal(self, name: str, **arguments: Any) -> str | None:
        """Ask a veto hook: the first sentence that refuses; an observer that raises refuses."""
        if not self._hooks:
            return None
        for implementation in self._hooks[name]:
            try:
                reason = _invoke(implementation, arguments)
            except (Exception, SystemExit) as error:
                reason = f"the observer '{implementation.plugin_name}' failed: {_named(error)}"
                log.warning("%s in %s", reason, name)
            if reason is not None:
                return str(reason)
        return None


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
            log.warning("the observer '%s' cannot be loaded and is left out: %s", entry.name, _named(error))
    return Hooks(found)


def _invoke(implementation: Any, arguments: dict[str, Any]) -> Any:
    return implementation.function(*(arguments[name] for name in implementation.argnames))


def _wraps(caller: Any, observer: Any) -> bool:
    return any(i.plugin is observer and (i.wrapper or i.hookwrapper) for i in caller.get_hookimpls())


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {_reason(error)}"


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or "no reason given"
