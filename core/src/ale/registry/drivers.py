"""Loads drivers by name: it finds them among the installed packages and imports only those that a run names.

1. `installed.py` lists them; it also detects two packages with the same name, and `package:name` selects one. A name
   may also mean a class of the user's, in a file or a module (`user_classes.py`).
2. stevedore imports the one driver that is wanted, and nothing else.
3. Any error of a plugin on import becomes a sentence that names the plugin (`SystemExit` too).
4. Before it is built, the class must implement its kind's contract, in a range of versions that includes this ALE's. A
   user's own class need not say for which versions it was made: it goes with the run.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ale.errors import ConfigError, PluginError
from ale.registry.hints import ask_hints
from ale.registry.installed import PluginInfo, list_plugins
from ale.registry.packages import our_plugins
from ale.registry.user_classes import find_class, may_be_module, split_file
from ale.registry.user_files import PACKAGE, search_current_folder, show_path
from ale.registry.validation import add_place, as_plugin_error, describe_error, lenient_model, nearest_hint, validate
from ale.registry.versions import describe_mismatch
from ale.specs.choice import PluginChoice
from ale.specs.driver import Driver, DriverContext
from ale.specs.kinds import HOOKS, plugin_noun

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
    """Find the plugin that `name` means: a name, `package:name`, `file.py:Class` or `module:Class`. Raises
    `ConfigError` or `PluginError` with a sentence."""
    with add_place(kind):
        return _find(kind, name)


def _find(kind: str, name: str) -> PluginInfo:
    installed = list_plugins(kind)
    if split_file(name) is not None:
        return _user_class(kind, name)
    package, _, bare = name.rpartition(":")
    matches = [i for i in installed if i.name == bare and package in ("", i.package)]
    if not matches and may_be_module(name) and _is_module(package):
        return _user_class(kind, name)
    if not matches:
        names = {i.name for i in installed}
        also, hint = "", _install_hint(kind, package, bare, installed)
        if "/" in name:
            hint = " A class in a file is written ./mine.py:Mine."
        elif may_be_module(name) and bare not in names:
            also, hint = f", and no module '{package}'", f" Installed: {', '.join(sorted(names)) or 'none'}."
        raise ConfigError(f"there is no {plugin_noun(kind)} '{name}'{also}.{hint}")
    if len(matches) > 1:
        packages = " and ".join(i.package for i in matches)
        choices = " or ".join(f"{i.package}:{i.name}" for i in matches)
        raise ConfigError(f"{packages} both bring the {plugin_noun(kind)} '{bare}'; write {choices}.")
    info = matches[0]
    unfit = describe_mismatch(info.api_version, info.package) if info.api_version else None
    if unfit is not None:
        raise PluginError(f"{_plugin_phrase(info)} {unfit}")
    return info


def _is_module(name: str) -> bool:
    """Return whether Python finds the first package of a module's name, also in the current folder."""
    search_current_folder()
    top = name.partition(".")[0]
    try:
        return top in sys.modules or find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _user_class(kind: str, use: str) -> PluginInfo:
    """Describe a class of the user's, which belongs to no package."""
    file, name = split_file(use) or ("", use.rpartition(":")[2])
    return PluginInfo(kind, name or Path(file).stem, "", "", "", "ok", "", "", None, use)


def load_driver_class(kind: str, name: str, yaml_path: str = "") -> type[Driver]:
    """Import a driver; `yaml_path` says where the run file names it. Raises `ConfigError` or `PluginError`.

    For an observer that is no driver (a module, an object, a function, a plain class) it returns a `FoundObserver`.
    """
    with add_place(yaml_path or kind):
        return _load_class(kind, name)


def _load_class(kind: str, name: str) -> type[Driver]:
    info = _find(kind, name)
    what = _plugin_phrase(info)
    loaded = _import_target(info, what) if info.package else find_class(kind, name)
    if kind == HOOKS and not (isinstance(loaded, type) and issubclass(loaded, Driver)):
        loaded = type("Found", (FoundObserver,), {"found": staticmethod(loaded) if callable(loaded) else loaded})
    _check_class(info, what, loaded)
    return loaded  # type: ignore[no-any-return]


def _check_class(info: PluginInfo, what: str, loaded: Any) -> None:
    """Refuse a class that does not keep the contract of its kind. Raises `PluginError`."""
    kind, named = info.kind, info.target if info.package else info.name
    contract: type = _contract(kind) if kind in CONTRACTS else Driver
    if not (isinstance(loaded, type) and issubclass(loaded, contract) and issubclass(loaded, Driver)):
        others = " and ".join(f"'{other}'" for other in _kinds_of(loaded) if other != kind)
        raise PluginError(
            f"{what} is no {kind} driver{f' (it is one of kind {others})' if others else ''}: {named} must be a class "
            f"made from ale.specs.{kind}.{contract.__name__} and from ale.specs.driver.Driver."
            f"{_lacking_methods(contract, loaded)}"
        )
    declared = str(loaded.api_version)
    unfit = describe_mismatch(declared, info.package) if declared or (info.package and kind != HOOKS) else None
    if unfit is not None:
        mend = "" if info.package else " A class in a file of your own may leave api_version out."
        raise PluginError(f"{what} {unfit if info.package else unfit.partition(';')[0] + '.'}{mend}")
    missing = ", ".join(sorted(getattr(loaded, "__abstractmethods__", ())))
    if missing:
        raise PluginError(f"{what} is unfinished: {named} lacks {missing}, which the contract asks for.")
    for name in sorted(getattr(contract, "__abstractmethods__", ())):  # an observer has none
        unlike = _unlike_contract(getattr(contract, name), getattr(loaded, name))
        if unlike:
            raise PluginError(f"{what}: {named}.{name} {unlike}.")
    if not (inspect.isclass(loaded.Config) and issubclass(loaded.Config, BaseModel)):
        raise PluginError(f"{what}: {named}.Config must be a pydantic model, such as ale.specs.driver.PluginConfig.")
    if open_model := lenient_model(loaded.Config):
        raise PluginError(
            f"{what}: {open_model} takes keys that it does not know, so that a typo would do nothing in silence; "
            "make it from ale.specs.driver.PluginConfig, or set extra='forbid'."
        )
    if kind == HOOKS:
        _check_hooks(info, what, loaded.found if issubclass(loaded, FoundObserver) else loaded)


def _lacking_methods(contract: type, loaded: Any) -> str:
    """Return a sentence about the contract's methods that a class does not have, or nothing."""
    asked = sorted(getattr(contract, "__abstractmethods__", ()))
    missing = [name for name in asked if not callable(getattr(loaded, name, None))]
    methods = f"method{'s' * (len(missing) > 1)} {', '.join(missing)}"
    return f" It also lacks the {methods}, which the contract asks for." if missing and isinstance(loaded, type) else ""


def _check_hooks(info: PluginInfo, what: str, observer: Any) -> None:
    """Refuse an observer whose hooks do not fit, and one of the user's that has none. Raises `PluginError`."""
    from ale.registry.hooks import Hooks
    from ale.specs.events import HookSpecs

    try:
        hooks = Hooks([(info.name, observer)])
    except PluginError as error:
        raise PluginError(f"{what}: {error}") from error
    if not info.package and not hooks.has_implementation(*vars(HookSpecs)):
        unmarked = [word for word in dir(observer) if hasattr(HookSpecs, word) and word.startswith("ale_")]
        of = f"put @hookimpl above {unmarked[0]}" if unmarked else "mark the functions that are hooks with @hookimpl"
        raise PluginError(f"{what} observes nothing: {of} (from ale.specs.events import hookimpl).")


def _contract(kind: str) -> type:
    found: type = getattr(import_module(f"ale.specs.{kind}"), CONTRACTS[kind])
    return found


def _kinds_of(loaded: Any) -> Iterator[str]:
    """Yield the kinds whose contract a class is made from."""
    if isinstance(loaded, type):
        yield from (kind for kind in CONTRACTS if issubclass(loaded, _contract(kind)))


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
    with as_plugin_error(f"{yaml_path or kind}: the {plugin_noun(kind)} '{choice.use}' cannot start"):
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
    own = cls.__module__.startswith(f"{PACKAGE}.")
    place = cls.__qualname__ if own else f"{cls.__module__}.{cls.__qualname__}"
    what = f"the checks in {place}.Config failed"  # in one of the plugin's validators
    with as_plugin_error(f"{yaml_path}: {what}" if yaml_path else what):
        return validate(cls.Config, dict(settings), yaml_path, beside)


def build_driver(kind: str, choice: PluginChoice, context: DriverContext, yaml_path: str = "") -> Driver:
    """Build the driver that a section of the run names, with checked settings. Raises `ConfigError`, `PluginError`."""
    where = yaml_path or kind
    plugin = load_plugin(kind, choice, where)
    with as_plugin_error(f"{where}: the {plugin_noun(kind)} '{choice.use}' cannot be built"):
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
    if not info.package:
        file, name = split_file(info.target) or ("", info.name)
        place = show_path(file) if file else f"the module {info.target.partition(':')[0]}"
        return f"{name} of {place}" if name else place
    return f"the {plugin_noun(info.kind)} '{info.name}' of {info.package} {info.version}"


def _install_hint(kind: str, package: str, name: str, installed: list[PluginInfo]) -> str:
    names, ours = sorted({i.name for i in installed}), our_plugins(kind)
    if package and name in names:
        hint = f" '{name}' comes from {', '.join(i.package for i in installed if i.name == name)}."
    elif name in ours:
        hint = f" It comes with {ours[name]}: `pip install {ours[name]}`."
    else:
        none = " No package of ALE brings it; a class of yours is written ./mine.py:Mine."
        hint = ask_hints("plugins", kind, name) or nearest_hint(name, names) or nearest_hint(name, ours) or none
    return f"{hint} Installed: {', '.join(names) or 'none'}."
