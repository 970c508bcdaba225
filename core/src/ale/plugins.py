"""The plugin registry: what is installed, loading a driver by name, and the observers of a run.

1. Listing reads package metadata and each package's static `ale-plugin.json`; it imports no plugin.
2. A driver is loaded by stevedore, one at a time, when a run names it.
3. Observers (`ale.hooks`) are loaded one by one; one that cannot be imported is logged and left out.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from ale.errors import ConfigError, PluginError
from ale.run_config import PluginChoice
from ale.specs.driver import API_VERSION, KINDS, Driver, DriverContext

log = logging.getLogger("ale.plugins")
MANIFEST = "ale-plugin.json"
VETO_HOOKS = frozenset({"ale_before_exec", "ale_filter_trajectory"})


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A line of `ale plugins list`. `status` is `ok`, `incompatible` or `duplicate`."""

    kind: str
    name: str
    package: str
    version: str
    status: str
    summary: str
    api_version: str
    target: str


def list_plugins(kind: str | None = None) -> list[PluginInfo]:
    """Every installed driver, by kind and name, from metadata alone."""
    found: list[PluginInfo] = []
    for distribution, entry in _entry_points():
        entry_kind = entry.group.removeprefix("ale.")
        if kind is not None and entry_kind != kind:
            continue
        manifest = _manifest(distribution, entry)
        about = next((p for p in manifest.get("plugins", ()) if (p.get("kind"), p.get("name")) == (entry_kind, entry.name)), {})
        api = str(manifest.get("api_version", API_VERSION))
        status = "ok" if _major(api) == _major(API_VERSION) else "incompatible"
        found.append(
            PluginInfo(
                entry_kind, entry.name, distribution.metadata["Name"], distribution.version, status,
                str(about.get("summary", "")), api, entry.value,
            )  # fmt: skip
        )
    counts: dict[tuple[str, str], int] = {}
    for info in found:
        counts[info.kind, info.name] = counts.get((info.kind, info.name), 0) + 1
    return sorted(
        (i if counts[i.kind, i.name] == 1 else _replace_status(i, "duplicate") for i in found),
        key=lambda i: (KINDS.index(i.kind), i.name, i.package),
    )


def _replace_status(info: PluginInfo, status: str) -> PluginInfo:
    from dataclasses import replace

    return replace(info, status=status)


def _entry_points() -> Iterator[tuple[metadata.Distribution, metadata.EntryPoint]]:
    groups = {f"ale.{kind}" for kind in KINDS}
    seen: set[str] = set()
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name in seen:
            continue
        seen.add(name)
        for entry in distribution.entry_points:
            if entry.group in groups:
                yield distribution, entry


def _manifest(distribution: metadata.Distribution, entry: metadata.EntryPoint) -> dict[str, Any]:
    return {}


def _major(version: str) -> str:
    return version.split(".")[0]


def load_driver_class(kind: str, name: str, yaml_path: str) -> type[Driver]:
    """Import the driver `name` of `kind`. Raises `ConfigError` or `PluginError` with a sentence."""
    installed = [i for i in list_plugins(kind)]
    package, _, bare = name.rpartition(":")
    matches = [i for i in installed if i.name == bare and package in ("", i.package)]
    if not matches:
        names = sorted({i.name for i in installed})
        near = difflib.get_close_matches(bare, names, 1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise ConfigError(
            f"{yaml_path}: there is no {kind} plugin '{name}'.{hint} Installed: {', '.join(names) or 'none'}."
        )
    if len(matches) > 1:
        raise ConfigError(f"{yaml_path}: '{name}' is claimed by {' and '.join(i.package for i in matches)}; write package:name.")
    info = matches[0]
    entry = metadata.EntryPoint(info.name, info.target, f"ale.{kind}")
    try:
        loaded = entry.load()
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise PluginError(f"{yaml_path}: the plugin '{info.name}' of {info.package} cannot be imported: {type(error).__name__}: {error}.") from error
    return cast(type[Driver], loaded)


def build_driver(kind: str, choice: PluginChoice, context: DriverContext, yaml_path: str) -> Driver:
    """The driver that a section of the run names, with its settings validated."""
    cls = load_driver_class(kind, choice.use, yaml_path)
    return cls(cls.Config.model_validate(choice.settings), context)


class Hooks:
    """The observers of one run. Without observers a call costs a dictionary look-up."""

    def __init__(self, manager: Any = None) -> None:
        self._manager = manager

    def watches(self, name: str) -> bool:
        """Whether anybody implements this hook."""
        return self._manager is not None and bool(getattr(self._manager.hook, name).get_hookimpls())

    def call(self, name: str, **arguments: Any) -> None:
        """Tell every observer; one that raises is logged."""

    def refusal(self, name: str, **arguments: Any) -> str | None:
        """Ask a veto hook: the first sentence that refuses; an observer that raises refuses."""
        return None


def load_hooks() -> Hooks:
    """The observers that are installed."""
    return Hooks()


_ = (Path, json)
