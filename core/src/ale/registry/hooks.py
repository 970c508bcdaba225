"""The observers of a run: pluggy hooks whose errors do not end the run.

1. A run registers the observers that its configuration names; one whose hooks do not fit `ale.specs.events` refuses
   the run before it starts, as any wrong setting does.
2. `Hooks.call` calls every observer; the error of one is logged, and the others are still called. After `MAX_ERRORS`
   errors only an observer's veto hooks are still called.
3. `Hooks.veto_reason` asks a *veto* hook. An observer that raises there refuses, since it has not agreed; so a veto
   hook is still asked after `MAX_ERRORS` errors.
Without observers a call costs one comparison.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from inspect import iscoroutinefunction
from typing import Any

from ale.errors import PluginError
from ale.registry.foreign_code import catch_all
from ale.registry.validation import describe_error, nearest_hint, one_line_error

log = logging.getLogger("ale.hooks")
MAX_ERRORS = 3
"""The number of errors after which only an observer's veto hooks are called."""


class Hooks:
    """The observers of one run. Raises `PluginError` for an observer whose hooks do not fit."""

    def __init__(self, observers: Iterable[tuple[str, Any]] = ()) -> None:
        self._hooks: dict[str, list[Any]] = {}
        self._manager: Any = None
        self._errors: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        """Errors in veto hooks are counted apart: they do not silence an observer."""
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
            for caller in self._manager.get_hookcallers(observer) or ():
                _check_kind(caller.name, [i for i in caller.get_hookimpls() if i.plugin is observer])
        except Exception as error:
            if self._manager.get_plugin(name) is observer:
                self._manager.unregister(name=name)
            unknown = [n for n in dir(observer) if n.startswith("ale_") and not hasattr(HookSpecs, n)]
            hint = "".join(nearest_hint(n, vars(HookSpecs)) for n in unknown)
            raise PluginError(
                f"The observer '{name}' does not fit the hooks of ALE: {one_line_error(error)}.{hint}"
            ) from error
        for hook in vars(self._manager.hook).values():
            # The list is kept, last registered first as in pluggy: each hook is called separately, so that one that
            # raises does not silence the others.
            self._hooks[hook.name] = list(reversed(hook.get_hookimpls()))

    def has_implementation(self, *names: str) -> bool:
        """Return whether any observer implements one of these hooks."""
        return any(self._hooks.get(name) for name in names)

    def call(self, name: str, receive: Callable[[Any], None] = lambda answer: None, **arguments: Any) -> None:
        """Call a hook of every observer, and `receive` with each answer; the error of one that raises is logged."""
        if not self._hooks:
            return
        for implementation in self._hooks[name]:
            observer = implementation.plugin_name
            if self._errors[observer] >= MAX_ERRORS:
                continue
            with catch_all() as caught:
                receive(_invoke(implementation, arguments))
            for error in caught:
                self._errors[observer] += 1
                last = " Only its veto hooks are called from now on." if self._errors[observer] >= MAX_ERRORS else ""
                log.warning("the observer '%s' failed in %s: %s.%s", observer, name, describe_error(error), last)

    def veto_reason(self, name: str, **arguments: Any) -> str | None:
        """Ask a veto hook and return the first sentence that refuses; an observer that raises refuses."""
        if not self._hooks:
            return None
        for implementation in self._hooks[name]:
            with catch_all() as caught:
                reason = _invoke(implementation, arguments)
                if reason is not None and not (isinstance(reason, str) and reason):
                    raise TypeError(f"it returned {reason!r}, not None or a sentence")
            for error in caught:
                observer = implementation.plugin_name
                reason = f"the observer '{observer}' failed: {describe_error(error)}"
                self._refusals[observer] += 1
                if (errors := self._refusals[observer]) <= MAX_ERRORS:
                    last = " Further errors of its veto hooks are not logged." if errors == MAX_ERRORS else ""
                    log.warning("%s in %s, which is a refusal.%s", reason, name, last)
            if reason is not None:
                return str(reason)
        return None


def _invoke(implementation: Any, arguments: dict[str, Any]) -> Any:
    return implementation.function(*(arguments[name] for name in implementation.argnames))


def _check_kind(name: str, implementations: list[Any]) -> None:
    if any(i.wrapper or i.hookwrapper for i in implementations):
        raise ValueError(f"{name} is a wrapper, and the hooks of ALE cannot be wrapped")
    if any(iscoroutinefunction(i.function) for i in implementations):
        raise ValueError(f"{name} is a coroutine function; a hook is a plain function (write 'def')")
