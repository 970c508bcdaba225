"""Loads drivers by name: it finds them among the installed packages and imports only those that a run names.

1. `installed.py` lists them; it also detects two packages with the same name, and `package:name` selects one.
2. stevedore imports the one driver that is wanted, and nothing else.
3. Any error of a plugin on import becomes a sentence that names the plugin (`SystemExit` too).
4. Before it is built, the class must implement its kind's contract, in a range of versions that includes this ALE's.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

from pydantic import BaseModel

from ale.errors import ConfigError, PluginError
from ale.registry.hints import ask_hints
from ale.registry.installed import PluginInfo, list_plugins
from ale.registry.validation import add_place, as_plugin_error, describe_error, lenient_model, nearest_hint, validate
from ale.registry.versions import describe_mismatch
from ale.specs.choice import PluginChoice
from ale.specs.driver import Driver, DriverContext
from ale.specs.kinds import HOOKS

CONTRACTS = {
    "sandbox": "SandboxProvider",
    "engine": "InferenceEngine",
    "trainer": "TrainerBackend",
    "algorithm": "Algorithm",
    "scaffold": "Scaffold",
    "reward": "Reward",
    "tasks": "TaskSource",
    "tool_format": "ToolFormat",
    "cluster": "Cluster",
}
"""The class in `ale.specs.<kind>` that a driver of the kind is derived from."""


class FoundObserver(Driver):
    """It wraps an observer without settings: a module, an object, or a class that is called without arguments."""

    found: Any = None

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self.observer = self.found() if inspect.isclass(self.found) else self.found


@dataclass(frozen=True)
class LoadedPlugin:
    """A plugin's class, and its settings as its `Config`."""

    cls: type[Driver]
    config: Any


def load_plugin(kind: str, choice: PluginChoice, yaml_path: str = "", beside: Sequence[str] = ()) -> LoadedPlugin:
    """Import the plugin that a section names and check its settings; this is done once for each choice.

    `beside` are the section's other keys. Raises `ConfigError`, `PluginError`.
    """
    if choice._loaded is None:
        with add_place(yaml_path):
            cls = _load_class(kind, choice.use)
        choice._loaded = LoadedPlugin(cls, validate_settings(cls, choice.settings, yaml_path, beside))
    loaded: LoadedPlugin = choice._loaded
    return loaded


def find_plugin(kind: str, name: str) -> PluginInfo:
    """Find the plugin that `name` (or `package:name`) means. Raises `ConfigError` or `PluginError` with a sentence."""
    with add_place(kind):
        return _find(kind, name)


def _find(kind: str, name: str) -> PluginInfo:
    installed = list_plugins(kind)
    package, _, bare = name.rpartition(":")
    matches = [i for i in installed if i.name == bare and package in ("", i.package)]
    if not matches:
        raise ConfigError(f"there is no {kind} plugin '{name}'.{_install_hint(kind, package, bare, installed)}")
    if len(matches) > 1:
        packages = " and ".join(i.package for i in matches)
        choices = " or ".join(f"{i.package}:{i.name}" for i in matches)
        raise ConfigError(f"{packages} both bring the {kind} plugin '{bare}'; write {choices}.")
    info = matches[0]
    unfit = describe_mismatch(info.api_version, info.package) if info.api_version else None
    if unfit is not None:
        raise PluginError(f"{_plugin_phrase(info)} {unfit}")
    return info


def load_driver_class(kind: str, name: str, yaml_path: str = "") -> type[Driver]:
    """Import a driver; `yaml_path` says where the run file names it. Raises `ConfigError` or `PluginError`.

    For an observer that is no driver (a module, an object, a plain class) it returns a `FoundObserver`.
    """
    with add_place(yaml_path or kind):
        return _load_class(kind, name)


def _load_class(kind: str, name: str) -> type[Driver]:
    info = _find(kind, name)
    what = _plugin_phrase(info)
    loaded = _import_target(info, what)
    if kind == HOOKS and not (isinstance(loaded, type) and issubclass(loaded, Driver)):
        loaded = type("Found", (FoundObserver,), {"found": staticmethod(loaded) if callable(loaded) else loaded})
    contract: type = getattr(import_module(f"ale.specs.{kind}"), CONTRACTS[kind]) if kind in CONTRACTS else Driver
    if not (isinstance(loaded, type) and issubclass(loaded, contract) and issubclass(loaded, Driver)):
        raise PluginError(
            f"{what} is no {kind} driver: {info.target} must be a class made from ale.specs.{kind}.{contract.__name__} "
            "and from ale.specs.driver.Driver."
        )
    unfit = describe_mismatch(str(loaded.api_version), info.package) if kind != HOOKS or loaded.api_version else None
    if unfit is not None:
        raise PluginError(f"{what} {unfit}")
    missing = ", ".join(sorted(getattr(loaded, "__abstractmethods__", ())))
    if missing:
        raise PluginError(f"{what} is unfinished: {info.target} lacks {missing}, which the contract asks for.")
    for name in sorted(getattr(contract, "__abstractmethods__", ())):  # an observer has none
        unlike = _unlike_contract(getattr(contract, name), getattr(loaded, name))
        if unlike:
            raise PluginError(f"{what}: {info.target}.{name} {unlike}.")
    if not (inspect.isclass(loaded.Config) and issubclass(loaded.Config, BaseModel)):
        raise PluginError(
            f"{what}: {info.target}.Config must be a pydantic model, such as ale.specs.driver.PluginConfig."
        )
    if open_model := lenient_model(loaded.Config):
        raise PluginError(
            f"{what}: {open_model} takes keys that it does not know, so that a typo would do nothing in silence; "
            "make it from ale.specs.driver.PluginConfig, or set extra='forbid'."
        )
    if kind == HOOKS:
        from ale.registry.hooks import Hooks

        try:
            Hooks([(info.name, loaded.found if issubclass(loaded, FoundObserver) else loaded)])
        except PluginError as error:
            raise PluginError(f"{what}: {error}") from error
    return loaded


def _unlike_contract(contract: Any, method: Any) -> str | None:
    """Return why a method cannot be called as its contract says, as the end of a sentence."""
    if not (inspect.isfunction(contract) and callable(method)):
        return None
    if inspect.iscoroutinefunction(contract) and not inspect.iscoroutinefunction(inspect.unwrap(method)):
        return "must be `async def`, as in the contract"
    try:
        positional = [p for p in inspect.signature(contract).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        inspect.signature(method).bind(*positional)
    except (TypeError, ValueError):
        return f"must take the contract's arguments, {inspect.signature(contract)}"
    return None


async def open_driver(
    stack: AsyncExitStack, kind: str, choice: PluginChoice, context: DriverContext, yaml_path: str = ""
) -> Driver:
    """Build a driver and start it; `stack` closes it. If the start fails, the error names the plugin."""
    driver = build_driver(kind, choice, context, yaml_path)
    with as_plugin_error(f"{yaml_path or kind}: the {kind} plugin '{choice.use}' cannot start"):
        await stack.enter_async_context(driver)
    return driver


def _import_target(info: PluginInfo, what: str) -> Any:
    """Import what the entry point names. Raises `PluginError` for any error that does not end the process."""
    try:
        return _load(info)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may raise anything, SystemExit and AssertionError included
        raise PluginError(
            f"{what} cannot be imported: {describe_error(error)}. Repair or reinstall {info.package}."
        ) from error


def validate_settings(
    cls: type[Driver], settings: Mapping[str, Any], yaml_path: str, beside: Sequence[str] = ()
) -> BaseModel:
    """Read a plugin's `Config` from its section; `beside` are its other keys. Raises `Mistakes`, `PluginError`."""
    what = f"the checks in {cls.__module__}.{cls.__qualname__}.Config failed"  # in one of the plugin's validators
    with as_plugin_error(f"{yaml_path}: {what}" if yaml_path else what):
        return validate(cls.Config, dict(settings), yaml_path, beside)


def build_driver(kind: str, choice: PluginChoice, context: DriverContext, yaml_path: str = "") -> Driver:
    """Build the driver that a section of the run names, with checked settings. Raises `ConfigError`, `PluginError`."""
    where = yaml_path or kind
    plugin = load_plugin(kind, choice, where)
    with as_plugin_error(f"{where}: the {kind} plugin '{choice.use}' cannot be built"):
        return plugin.cls(plugin.config, context)


def _load(info: PluginInfo) -> Any:
    """Load one driver through stevedore, from exactly the package that was found."""
    from stevedore import DriverManager

    group = f"ale.{info.kind}"

    class OneDriver(DriverManager):  # type: ignore[type-arg]
        """It sees only this entry point: stevedore's own list is cached in three places and forgets the package."""

        def list_entry_points(self) -> list[metadata.EntryPoint]:
            return [metadata.EntryPoint(info.name, info.target, group)]

    def fail(manager: Any, entry: Any, error: BaseException) -> None:
        raise error

    manager: Any = OneDriver(group, info.name, on_load_failure_callback=fail)
    # `manager.driver` would return the class only if the (missing) instance is falsy.
    return manager.extensions[0].plugin


def _plugin_phrase(info: PluginInfo) -> str:
    return f"the {info.kind} plugin '{info.name}' of {info.package} {info.version}"


def _install_hint(kind: str, package: str, name: str, installed: list[PluginInfo]) -> str:
    names, usual = sorted({i.name for i in installed}), name.replace("_", "-")
    if package and name in names:
        hint = f" '{name}' comes from {', '.join(i.package for i in installed if i.name == name)}."
    else:
        called = f"ale-plugin-{usual} or ale-plugin-{kind}-{usual}"
        guess = f" Its package is usually called {called}." if re.fullmatch(r"[\w-]+", name) else ""
        hint = ask_hints("plugins", kind, name) or nearest_hint(name, names) or guess
    return f"{hint} Installed: {', '.join(names) or 'none'}."
