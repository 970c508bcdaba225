"""The observers of a run: pluggy, with what may go wrong in an observer kept away from the run.

1. A run registers the observers that its configuration names; one whose hooks do not fit `ale.specs.events` refuses
   the run before it starts, as any wrong setting does.
2. `Hooks.call` tells every observer; one that raises is logged, and the others are told all the same. After
   `MAX_ERRORS` errors an observer is told nothing more.
3. `Hooks.refusal` asks a *veto* hook; an error is a refusal: who cannot say yes has not said yes. So a veto is asked
   for ever, also of an observer that is told nothing more.
Without observers a call costs one comparison.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ale.errors import PluginError
from ale.validation import named, one_line

log = logging.getLogger("ale.hooks")
MAX_ERRORS = 3
"""Errors after which an observer is told nothing more."""


class Hooks:
    """The observers of one run. Raises `PluginError` for one whose hooks do not fit."""

    def __init__(self, observers: Iterable[tuple[str, Any]] = ()) -> None:
        self._hooks: dict[str, list[Any]] = {}
        self._manager: Any = None
        self._errors: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        """Errors in veto hooks: they do not silence an observer."""
        for name, observer in observers:
            self.register(name, observer)

    def register(self, name: str, observer: Any) -> None:
        """Add an observer: an object or a module whose functions carry `hookimpl`."""
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
            if self._manager.get_plugin(name) is observer:
                self._manager.unregister(name=name)
            raise PluginError(f"The observer '{name}' does not fit the hooks of ALE: {one_line(error)}.") from error
        for hook in vars(self._manager.hook).values():
            # Kept as a list, last registered first as in pluggy: each is called by itself, so that one that
            # raises does not silence the others.
            self._hooks[hook.name] = list(reversed(hook.get_hookimpls()))

    def watches(self, *names: str) -> bool:
        """Whether anybody implements one of these hooks."""
        return any(self._hooks.get(name) for name in names)

    def call(self, name: str, **arguments: Any) -> None:
        """Tell every observer; one that raises is logged."""
        if not self._hooks:
            return
        for implementation in self._hooks[name]:
            observer = implementation.plugin_name
            if self._errors[observer] >= MAX_ERRORS:
                continue
            try:
                _invoke(implementation, arguments)
            except (Exception, SystemExit) as error:
                self._errors[observer] += 1
                last = " It is told nothing more." if self._errors[observer] >= MAX_ERRORS else ""
                log.warning("the observer '%s' failed in %s: %s.%s", observer, name, named(error), last)

    def refusal(self, name: str, **arguments: Any) -> str | None:
        """Ask a veto hook: the first sentence that refuses; an observer that raises refuses."""
        if not self._hooks:
            return None
        for implementation in self._hooks[name]:
            try:
                reason = _invoke(implementation, arguments)
            except (Exception, SystemExit) as error:
                observer = implementation.plugin_name
                reason = f"the observer '{observer}' failed: {named(error)}"
                self._refusals[observer] += 1
                if self._refusals[observer] <= MAX_ERRORS:
                    last = " More of these refusals are not logged." if self._refusals[observer] == MAX_ERRORS else ""
                    log.warning("%s in %s, which is a refusal.%s", reason, name, last)
            if reason is not None:
                return str(reason)
        return None


def _invoke(implementation: Any, arguments: dict[str, Any]) -> Any:
    return implementation.function(*(arguments[name] for name in implementation.argnames))


def _wraps(caller: Any, observer: Any) -> bool:
    return any(i.plugin is observer and (i.wrapper or i.hookwrapper) for i in caller.get_hookimpls())
