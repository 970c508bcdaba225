"""Lists what is installed, from package metadata and the text of each plugin's class: no plugin is imported.

1. A plugin's summary is that of its package; where a package brings several, the first sentence of the class's
   docstring. A file `ale-plugin.json` in the package may say otherwise, and name the capabilities of a plugin whose
   import is slow.
2. No slow module is imported here, so that `ale plugins list` is instant; and no package can break the list by its
   metadata. `ale plugins check` finds the faults that only an import can show.
3. The metadata is read once for each state of `sys.path` (its folders and their times), so that a run reads it once,
   and a new install is noticed.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import invalidate_caches, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from ale.errors import ConfigError
from ale.registry.class_text import read_class
from ale.registry.entry_points import find_entry_points
from ale.registry.search_path import path_state
from ale.registry.versions import describe_mismatch
from ale.specs.kinds import ALL_KINDS, HOOKS

MANIFEST = "ale-plugin.json"
Status = Literal["ok", "broken", "incompatible", "shadowed"]


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """An entry of `ale plugins list`.

    `status`: ok; broken (it cannot be imported in its present state); incompatible (made for other versions of the
    contracts); shadowed (another package has a plugin of the same name, so that a run must say `package:name`).
    `reason` is a sentence unless the status is ok. `api_version` and `capabilities` are what is declared without an
    import; empty and None if nothing is. `package` is empty for a class of the user's, which is not listed.
    """

    kind: str
    name: str
    package: str
    version: str
    api_version: str
    status: Status
    reason: str
    summary: str
    capabilities: tuple[str, ...] | None
    target: str


def list_plugins(kind: str | None = None) -> list[PluginInfo]:
    """Return every installed plugin in the order of kinds and names, from metadata alone.

    Raises `ConfigError` if there is no such kind.
    """
    if kind is not None and kind not in ALL_KINDS:
        from ale.registry.validation import nearest_hint

        kinds = ", ".join(ALL_KINDS)
        raise ConfigError(f"There is no kind of plugin '{kind}'.{nearest_hint(kind, ALL_KINDS)} The kinds: {kinds}.")
    return [info for info in _read_installed(path_state()) if kind in (None, info.kind)]


@lru_cache(maxsize=1)
def _read_installed(state: tuple[tuple[str, int], ...]) -> tuple[PluginInfo, ...]:
    """Return every installed plugin; metadata is read once for each state of `sys.path`."""
    invalidate_caches()
    found = [
        _read_plugin_info(package, entry, alone=len(entries) == 1)
        for package, entries in _distributions()
        for entry in entries
    ]
    claims: dict[tuple[str, str], list[PluginInfo]] = defaultdict(list)
    for info in found:
        claims[info.kind, info.name].append(info)
    marked = (_mark_shadowed(info, claims[info.kind, info.name]) for info in found)
    return tuple(sorted(marked, key=lambda i: (ALL_KINDS.index(i.kind), i.name, i.package)))


def _mark_shadowed(info: PluginInfo, claims: list[PluginInfo]) -> PluginInfo:
    """Return the plugin as shadowed if others claim its name too and it would work otherwise."""
    others = sorted(other.package for other in claims if other is not info)
    if not others or info.status != "ok":
        return info
    reason = f"{' and '.join(others)} brings this name too; write {info.package}:{info.name} to mean this one."
    return replace(info, status="shadowed", reason=reason)


@dataclass(frozen=True, slots=True)
class _Package:
    """A distribution whose metadata is parsed only once: parsing is most of the work."""

    name: str
    version: str
    summary: str


def _distributions() -> Iterator[tuple[_Package, list[metadata.EntryPoint]]]:
    seen: set[str] = set()
    for distribution, entries in find_entry_points([f"ale.{kind}" for kind in ALL_KINDS]):
        try:
            about = distribution.metadata
            # Some libraries replace Python's own reader of metadata by one that raises for a key that is not there.
            name, version, summary = (str(about[key]) if key in about else "" for key in ("Name", "Version", "Summary"))
        except Exception:  # whatever the files of another package contain, the list continues without it
            continue
        key = name.lower().replace("_", "-").replace(".", "-")
        if not name or key in seen:  # Python imports the first one on the path
            continue
        seen.add(key)
        yield _Package(name, version, summary), entries


def _read_plugin_info(package: _Package, entry: metadata.EntryPoint, *, alone: bool) -> PluginInfo:
    kind = entry.group.removeprefix("ale.")
    # `entry.module` raises if the target is no 'module:name'.
    module = entry.value.partition(":")[0].split(".")[0].strip()
    places = _find_folders(module)
    manifest = _read_manifest(places or ())
    plugins = manifest.get("plugins")
    about: dict[str, Any] = {}
    for plugin in plugins if isinstance(plugins, list) else ():
        if isinstance(plugin, dict) and (plugin.get("kind"), plugin.get("name")) == (kind, entry.name):
            about = plugin
    written = read_class(places or (), entry.value)
    declared = manifest.get("api_version")
    api = declared if isinstance(declared, str) else written.api_version
    capabilities = about.get("capabilities")
    status, reason = _status(kind, entry.value, module, places is not None, api, package.name)
    summary = about.get("summary") or (not alone and written.summary) or package.summary
    return PluginInfo(
        kind,
        entry.name,
        package.name,
        package.version,
        api,
        status,
        reason,
        " ".join(str(summary).split()),
        tuple(map(str, capabilities)) if isinstance(capabilities, list) else None,
        entry.value,
    )


def _find_folders(module: str) -> list[str] | None:
    """Return the folders of a top-level module; none if it is a single file, None if there is no such module."""
    try:
        spec = find_spec(module)  # of a top-level module this imports nothing
    except (ImportError, ValueError):
        spec = None
    return None if spec is None else list(spec.submodule_search_locations or ())


def _status(kind: str, target: str, module: str, there: bool, api: str, package: str) -> tuple[Status, str]:
    """Return what can be known without an import."""
    unfit = describe_mismatch(api, package) if api else None
    if unfit is not None:
        return "incompatible", f"It {unfit}"
    shape = r"[\w.]+(\s*:\s*[\w.]+)?" if kind == HOOKS else r"[\w.]+\s*:\s*[\w.]+"  # a module can be an observer
    if re.fullmatch(shape + r"(\s*\[.*\])?", target.strip()) is None:
        return "broken", f"Its entry point '{' '.join(target.split())}' is no 'module:name'; reinstall {package}."
    return ("ok", "") if there else ("broken", f"There is no module '{module}'; reinstall {package}.")


def _read_manifest(places: Sequence[str]) -> dict[str, Any]:
    """Return the package's `ale-plugin.json`, or an empty mapping if there is none or it cannot be read."""
    for place in places:
        try:
            data = json.loads(Path(place, MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(data, dict):
            return data
    return {}
