"""Drivers by name: found in what is installed, loaded one at a time when a run names them.

1. `installed.py` lists; two packages that claim one name are seen there, and `package:name` picks one.
2. stevedore loads the one driver that is wanted.
3. Whatever a plugin does wrong on import becomes a sentence that names it (`SystemExit` too).
"""

from __future__ import annotations

import difflib
from importlib import metadata
from typing import Any

from ale.errors import ConfigError, PluginError
from ale.installed import PluginInfo, list_plugins, major
from ale.run_config import PluginChoice
from ale.specs.driver import Driver, DriverContext
from ale.specs.kinds import API_VERSION

OWN_PACKAGES = {
    ("sandbox", "local"): "ale-plugin-local", ("engine", "torch"): "ale-plugin-engine-torch",
    ("engine", "scripted"): "ale-plugin-scripted", ("trainer", "torch"): "ale-plugin-trainer-torch",
    ("algorithm", "ipa"): "ale-plugin-ipa", ("algorithm", "sft"): "ale-plugin-sft",
    ("scaffold", "iflow"): "ale-plugin-iflow", ("reward", "tests"): "ale-plugin-tests",
    ("tasks", "bash"): "ale-plugin-bash",
}  # fmt: skip
"""Which package brings a default plugin, for the sentence that says what to install."""


def find_plugin(kind: str, name: str, yaml_path: str) -> PluginInfo:
    """The one plugin that `name` (or `package:name`) means. Raises `ConfigError` or `PluginError` with a sentence."""
    installed = list_plugins(kind)
    package, _, bare = name.rpartition(":")
    matches = [i for i in installed if i.name == bare and package in ("", i.package)]
    if not matches:
        names = sorted({i.name for i in installed})
        near = difflib.get_close_matches(bare, names, 1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        own = OWN_PACKAGES.get((kind, bare))
        bring = f" `pip install {own}` brings it." if own else ""
        raise ConfigError(
            f"{yaml_path}: there is no {kind} plugin '{name}'.{hint}{bring} Installed: {', '.join(names) or 'none'}."
        )
    if len(matches) > 1:
        choices = " and ".join(f"{i.package}:{i.name}" for i in matches)
        raise ConfigError(
            f"{yaml_path}: two packages claim the {kind} plugin '{bare}'; write {choices.replace(' and ', ' or ')}."
        )
    info = matches[0]
    if info.status == "incompatible":
        raise PluginError(
            f"{yaml_path}: {info.package} {info.version} was made for plugin API {info.api_version}, this ALE has "
            f"{API_VERSION}; install a version of {info.package} made for {major(API_VERSION)}.x."
        )
    return info


def load_driver_class(kind: str, name: str, yaml_path: str) -> type[Driver]:
    """Import a driver. Raises `ConfigError` or `PluginError` with a sentence."""
    info = find_plugin(kind, name, yaml_path)
    what = f"{yaml_path}: the {kind} plugin '{info.name}' of {info.package} {info.version}"
    try:
        loaded = _load(info)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may raise anything, SystemExit and AssertionError among it
        reason = str(error).splitlines()[0] if str(error) else "no reason given"
        raise PluginError(f"{what} cannot be imported: {type(error).__name__}: {reason}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Driver)):
        raise PluginError(f"{what} is no driver: {info.target} must be a class made from the contract in ale.specs.")
    if major(loaded.api_version) != major(API_VERSION):
        raise PluginError(f"{what} was made for plugin API {loaded.api_version}, this ALE has {API_VERSION}.")
    return loaded


def _load(info: PluginInfo) -> Any:
    """One driver through stevedore; its cache is off, for it can be stale right after an install."""
    if info.status == "duplicate":
        return metadata.EntryPoint(info.name, info.target, f"ale.{info.kind}").load()
    from stevedore import DriverManager, _cache

    _cache._c._disable_caching = True

    def fail(manager: Any, entry: Any, error: BaseException) -> None:
        raise error

    manager: Any = DriverManager(f"ale.{info.kind}", info.name, on_load_failure_callback=fail)
    # Not `manager.driver`: it would hand out the class only where the (missing) instance is falsy.
    return manager.extensions[0].plugin


def build_driver(kind: str, choice: PluginChoice, context: DriverContext, yaml_path: str) -> Driver:
    """The driver that a section of the run names, with its settings validated."""
    from ale.config import validated_settings

    cls = load_driver_class(kind, choice.use, yaml_path)
    return cls(validated_settings(cls, choice.settings, yaml_path), context)
