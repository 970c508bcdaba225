"""Drivers by name: found in what is installed, imported one at a time when a run names them.

1. `installed.py` lists; two packages that claim one name are seen there, and `package:name` picks one.
2. stevedore imports the one driver that is wanted, and nothing else.
3. Whatever a plugin does wrong on import becomes a sentence that names it (`SystemExit` too).
4. The class must keep the contract of its kind, made for a range of versions that holds this ALE's, before it is built.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from importlib import metadata
from typing import Any

from pydantic import BaseModel

from ale.config_base import PluginChoice
from ale.errors import AleError, ConfigError, PluginError
from ale.installed import PluginInfo, list_plugins
from ale.specs.driver import Driver, DriverContext
from ale.specs.kinds import HOOKS
from ale.validation import lenient_models, named, nearest, validated
from ale.versions import deprecated_form, mismatch, warn_deprecated

OWN_PACKAGES = {
    ("sandbox", "local"): "ale-plugin-local", ("sandbox", "docker"): "ale-plugin-docker",
    ("sandbox", "podman"): "ale-plugin-podman", ("engine", "torch"): "ale-plugin-engine-torch",
    ("engine", "scripted"): "ale-plugin-scripted", ("trainer", "torch"): "ale-plugin-trainer-torch",
    ("algorithm", "ipa"): "ale-plugin-ipa", ("algorithm", "pg"): "ale-plugin-pg", ("algorithm", "sft"): "ale-plugin-sft",
    ("scaffold", "iflow"): "ale-plugin-iflow", ("scaffold", "cli"): "ale-plugin-cli",
    ("scaffold", "sweagent"): "ale-plugin-sweagent", ("scaffold", "openhands"): "ale-plugin-openhands", ("reward", "tests"): "ale-plugin-tests",
    ("tasks", "bash"): "ale-plugin-bash", ("hooks", "tensorboard"): "ale-plugin-tensorboard",
    ("hooks", "audit_log"): "ale-plugin-audit-log", ("hooks", "lab"): "ale-plugin-lab",
}  # fmt: skip
"""Which package brings a default plugin, for the sentence that says what to install."""

CONTRACTS = {
    "sandbox": "SandboxProvider", "engine": "InferenceEngine", "trainer": "TrainerBackend", "algorithm": "Algorithm",
    "scaffold": "Scaffold", "reward": "Reward", "tasks": "TaskSource", "tool_format": "ToolFormat",
}  # fmt: skip
"""The class in `ale.specs.<kind>` that a driver of the kind is made from."""


class FoundObserver(Driver):
    """Stands for an observer without settings: a module, an object, or a class that is called without arguments."""

    found: Any = None

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self.observer = self.found() if inspect.isclass(self.found) else self.found


def find_plugin(kind: str, name: str, yaml_path: str = "") -> PluginInfo:
    """The one plugin that `name` (or `package:name`) means. Raises `ConfigError` or `PluginError` with a sentence."""
    where = yaml_path or kind
    installed = list_plugins(kind)
    package, _, bare = name.rpartition(":")
    matches = [i for i in installed if i.name == bare and package in ("", i.package)]
    if not matches:
        raise ConfigError(f"{where}: there is no {kind} plugin '{name}'.{_hint(kind, package, bare, installed)}")
    if len(matches) > 1:
        packages = " and ".join(i.package for i in matches)
        choices = " or ".join(f"{i.package}:{i.name}" for i in matches)
        raise ConfigError(f"{where}: {packages} both bring the {kind} plugin '{bare}'; write {choices}.")
    info = matches[0]
    unfit = mismatch(info.api_version, info.package)
    if unfit is not None:
        raise PluginError(f"{where}: {_what(info)} {unfit}")
    return info


def load_driver_class(kind: str, name: str, yaml_path: str = "") -> type[Driver]:
    """Import a driver; `yaml_path` says where the run file names it. Raises `ConfigError` or `PluginError`.

    An observer that is no driver (a module, an object, a plain class) comes back as a `FoundObserver`.
    """
    info = find_plugin(kind, name, yaml_path)
    what = f"{yaml_path or kind}: {_what(info)}"
    loaded = _imported(info, what)
    if kind == HOOKS and not (isinstance(loaded, type) and issubclass(loaded, Driver)):
        loaded = type("Found", (FoundObserver,), {"found": staticmethod(loaded) if callable(loaded) else loaded})
    contract: type = Driver
    if kind in CONTRACTS:
        contract = getattr(importlib.import_module(f"ale.specs.{kind}"), CONTRACTS[kind])
    if not (isinstance(loaded, type) and issubclass(loaded, contract) and issubclass(loaded, Driver)):
        raise PluginError(
            f"{what} is no {kind} driver: {info.target} must be a class made from ale.specs.{kind}.{contract.__name__}."
        )
    unfit = mismatch(str(loaded.api_version), info.package)
    if unfit is not None:
        raise PluginError(f"{what} {unfit}")
    old = deprecated_form(str(loaded.api_version)) if kind != HOOKS or loaded.api_version else None
    if old is not None:
        warn_deprecated(_what(info), old, gone_in="1.2")
    missing = ", ".join(sorted(getattr(loaded, "__abstractmethods__", ())))
    if missing:
        raise PluginError(f"{what} is unfinished: {info.target} lacks {missing}, which the contract asks for.")
    open_model = next(lenient_models(loaded.Config), None) if inspect.isclass(loaded.Config) else None
    if open_model is not None:
        raise PluginError(
            f"{what}: {open_model} takes keys that it does not know, so that a typo would do nothing in silence; "
            "make it from ale.specs.driver.PluginConfig, or set extra='forbid'."
        )
    if not (inspect.isclass(loaded.Config) and issubclass(loaded.Config, BaseModel)):
        raise PluginError(
            f"{what}: {info.target}.Config must be a pydantic model, such as ale.specs.driver.PluginConfig."
        )
    if kind == HOOKS:
        from ale.hooks import Hooks

        try:
            Hooks([(info.name, loaded.found if issubclass(loaded, FoundObserver) else loaded)])
        except PluginError as error:
            raise PluginError(f"{what}: {error}") from error
    return loaded


async def open_driver(
    stack: AsyncExitStack, kind: str, choice: PluginChoice, context: DriverContext, yaml_path: str = ""
) -> Driver:
    """Build a driver and start it; `stack` closes it. A start that fails is a sentence that names the plugin."""
    driver = build_driver(kind, choice, context, yaml_path)
    try:
        await stack.enter_async_context(driver)
    except AleError:
        raise
    except Exception as error:
        raise PluginError(
            f"{yaml_path or kind}: the {kind} plugin '{choice.use}' cannot start: {named(error)}."
        ) from error
    return driver


def _imported(info: PluginInfo, what: str) -> Any:
    """What the entry point names. Raises `PluginError` whatever the import does short of ending the process."""
    try:
        return _load(info)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may raise anything, SystemExit and AssertionError among it
        raise PluginError(f"{what} cannot be imported: {named(error)}. Repair or reinstall {info.package}.") from error


def validated_settings(
    cls: type[Driver], settings: Mapping[str, Any], yaml_path: str, beside: Sequence[str] = ()
) -> BaseModel:
    """A plugin's `Config` from its section; `beside` are the section's other keys. Raises `ConfigError`, a line a mistake."""
    try:
        return validated(cls.Config, dict(settings), yaml_path, beside)
    except AleError:
        raise
    except Exception as error:  # a validator of the plugin's own
        raise PluginError(
            f"{yaml_path}: the checks in {cls.__module__}.{cls.__qualname__}.Config failed: {named(error)}."
        ) from error


def build_driver(kind: str, choice: PluginChoice, context: DriverContext, yaml_path: str = "") -> Driver:
    """The driver that a section of the run names, with its settings validated. Raises `ConfigError`, `PluginError`."""
    where = yaml_path or kind
    cls = load_driver_class(kind, choice.use, where)
    config = validated_settings(cls, choice.settings, where)
    try:
        return cls(config, context)
    except AleError:
        raise
    except Exception as error:
        raise PluginError(f"{where}: the {kind} plugin '{choice.use}' cannot be built: {named(error)}.") from error


def _load(info: PluginInfo) -> Any:
    """One driver through stevedore, of exactly the package that was found."""
    from stevedore import DriverManager

    entry = metadata.EntryPoint(info.name, info.target, f"ale.{info.kind}")

    class OneDriver(DriverManager):  # type: ignore[type-arg]
        """Sees this one entry point: stevedore's own list is cached in three places and forgets the package."""

        def list_entry_points(self) -> list[metadata.EntryPoint]:
            return [entry]

    def fail(manager: Any, entry: Any, error: BaseException) -> None:
        raise error

    importlib.invalidate_caches()
    manager: Any = OneDriver(entry.group, entry.name, on_load_failure_callback=fail)
    # Not `manager.driver`: it would hand out the class only where the (missing) instance is falsy.
    return manager.extensions[0].plugin


def _what(info: PluginInfo) -> str:
    return f"the {info.kind} plugin '{info.name}' of {info.package} {info.version}"


def _hint(kind: str, package: str, name: str, installed: list[PluginInfo]) -> str:
    names = sorted({i.name for i in installed})
    own = OWN_PACKAGES.get((kind, name))
    if own and name not in names:
        hint = f" `pip install {own}` brings it."
    elif package and name in names:
        hint = f" '{name}' comes from {', '.join(i.package for i in installed if i.name == name)}."
    else:
        hint = nearest(name, {*names, *(n for k, n in OWN_PACKAGES if k == kind)})
    return f"{hint} Installed: {', '.join(names) or 'none'}."
