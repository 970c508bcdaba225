"""What is installed, from package metadata and each package's static `ale-plugin.json`: no plugin is imported.

Nothing heavy is imported here either, so that `ale plugins list` is instant; and nothing that a package has written
into its metadata can break the list.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from ale.specs.kinds import API_VERSION, KINDS

MANIFEST = "ale-plugin.json"
Status = Literal["ok", "broken", "incompatible", "duplicate"]


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A line of `ale plugins list`.

    `status`: ok; broken (its module is not there); incompatible (made for another major version of the contracts);
    duplicate (another package claims the same name).
    """

    kind: str
    name: str
    package: str
    version: str
    status: Status
    summary: str
    capabilities: tuple[str, ...]
    api_version: str
    target: str


def list_plugins(kind: str | None = None) -> list[PluginInfo]:
    """Every installed driver in the order of kinds and names, from metadata alone."""
    found = [
        _describe(distribution, entry)
        for distribution, entries in _distributions()
        for entry in entries
        if kind is None or entry.group == f"ale.{kind}"
    ]
    claims = Counter((info.kind, info.name) for info in found)
    marked = [replace(i, status="duplicate") if claims[i.kind, i.name] > 1 else i for i in found]
    return sorted(marked, key=lambda i: (KINDS.index(i.kind), i.name, i.package))


@dataclass(frozen=True, slots=True)
class _Package:
    """A distribution whose metadata is parsed once: that is most of the work."""

    name: str
    version: str
    summary: str
    distribution: metadata.Distribution


def _distributions() -> Iterator[tuple[_Package, list[metadata.EntryPoint]]]:
    groups = {f"ale.{kind}" for kind in KINDS}
    seen: set[str] = set()
    for distribution in metadata.distributions():
        try:
            # Reading entry_points.txt costs far less than parsing metadata; most packages end here.
            text = distribution.read_text("entry_points.txt")
            if not text or "ale." not in text:
                continue
            entries = [entry for entry in distribution.entry_points if entry.group in groups]
            about = distribution.metadata
            name, version = str(about["Name"] or ""), str(about["Version"] or "")
            summary = str(about["Summary"] or "")
        except Exception:  # whatever stands in the files of a stranger's package, the list goes on without it
            continue
        key = name.lower().replace("_", "-").replace(".", "-")
        if not name or key in seen:  # the first one on the path is the one that is imported
            continue
        seen.add(key)
        if entries:
            yield _Package(name, version, summary, distribution), entries


def _describe(package: _Package, entry: metadata.EntryPoint) -> PluginInfo:
    kind = entry.group.removeprefix("ale.")
    # Not `entry.module`: it raises where the target is no 'module:name'.
    module = entry.value.partition(":")[0].split(".")[0].strip()
    manifest = _manifest(package.distribution, module)
    plugins = manifest.get("plugins")
    about: dict[str, Any] = {}
    for plugin in plugins if isinstance(plugins, list) else ():
        if isinstance(plugin, dict) and (plugin.get("kind"), plugin.get("name")) == (kind, entry.name):
            about = plugin
    api = str(manifest.get("api_version", API_VERSION))
    capabilities = about.get("capabilities")
    status: Status = "ok"
    if major(api) != major(API_VERSION):
        status = "incompatible"
    elif not _is_there(module):
        status = "broken"
    return PluginInfo(
        kind, entry.name, package.name, package.version, status,
        " ".join(str(about.get("summary") or package.summary).split()),
        tuple(map(str, capabilities)) if isinstance(capabilities, list) else (), api, entry.value,
    )  # fmt: skip


def _is_there(module: str) -> bool:
    """Whether the top-level module can be found; finding it imports nothing."""
    try:
        return bool(module) and find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _manifest(distribution: metadata.Distribution, module: str) -> dict[str, Any]:
    """The package's `ale-plugin.json`; empty where there is none or it cannot be read."""
    places = [Path(str(distribution.locate_file(f"{module}/{MANIFEST}")))]
    for file in distribution.files or ():
        # An editable install has a .pth file that names the folder of the sources.
        if file.suffix == ".pth":
            try:
                lines = Path(str(file.locate())).read_text(encoding="utf-8").splitlines()
            except (OSError, ValueError):
                continue
            places += [Path(line.strip(), module, MANIFEST) for line in lines if not line.startswith("import")]
    for place in places:
        try:
            data = json.loads(place.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(data, dict):
            return data
    return {}


def major(version: str) -> str:
    """The part of a version before the first dot."""
    return version.split(".")[0]
