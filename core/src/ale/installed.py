"""What is installed, from package metadata and each package's static `ale-plugin.json`: no plugin is imported.

Nothing heavy is imported here either, so that `ale plugins list` is instant.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from ale.specs.kinds import API_VERSION, KINDS

MANIFEST = "ale-plugin.json"


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A line of `ale plugins list`: `status` is ok, incompatible (other API version) or duplicate."""

    kind: str
    name: str
    package: str
    version: str
    status: Literal["ok", "incompatible", "duplicate"]
    summary: str
    capabilities: tuple[str, ...]
    api_version: str
    target: str


def list_plugins(kind: str | None = None) -> list[PluginInfo]:
    """Every installed driver in the order of kinds and names, from metadata alone."""
    found = [_describe(d, e) for d, e in _entry_points() if kind is None or e.group == f"ale.{kind}"]
    claims = Counter((info.kind, info.name) for info in found)
    marked = [replace(i, status="duplicate") if claims[i.kind, i.name] > 1 else i for i in found]
    return sorted(marked, key=lambda i: (KINDS.index(i.kind), i.name, i.package))


def _entry_points() -> Iterator[tuple[metadata.Distribution, metadata.EntryPoint]]:
    groups = {f"ale.{kind}" for kind in KINDS}
    seen: set[str] = set()
    for distribution in metadata.distributions():
        # Reading entry_points.txt costs far less than parsing metadata; most packages end here.
        text = distribution.read_text("entry_points.txt")
        if not text or "ale." not in text:
            continue
        name = distribution.name
        if name in seen:  # the first one on the path is the one that is imported
            continue
        seen.add(name)
        for entry in distribution.entry_points:
            if entry.group in groups:
                yield distribution, entry


def _describe(distribution: metadata.Distribution, entry: metadata.EntryPoint) -> PluginInfo:
    kind = entry.group.removeprefix("ale.")
    manifest = _manifest(distribution, entry)
    entries = [p for p in manifest.get("plugins", ()) if isinstance(p, dict)]
    about: dict[str, Any] = next((p for p in entries if (p.get("kind"), p.get("name")) == (kind, entry.name)), {})
    api = str(manifest.get("api_version", API_VERSION))
    return PluginInfo(
        kind, entry.name, distribution.name, distribution.version,
        "ok" if major(api) == major(API_VERSION) else "incompatible",
        str(about.get("summary") or distribution.metadata.get("Summary", "")),
        tuple(map(str, about.get("capabilities", ()))), api, entry.value,
    )  # fmt: skip


def _manifest(distribution: metadata.Distribution, entry: metadata.EntryPoint) -> dict[str, Any]:
    """The package's `ale-plugin.json`; empty where there is none or it cannot be read."""
    package = entry.module.split(".")[0]
    places = [Path(str(distribution.locate_file(f"{package}/{MANIFEST}")))]
    for file in distribution.files or ():
        # An editable install has a .pth file that names the folder of the sources.
        if file.suffix == ".pth":
            try:
                places += [
                    Path(line.strip(), package, MANIFEST) for line in Path(str(file.locate())).read_text().splitlines()
                ]
            except OSError:
                continue
    for place in places:
        try:
            data = json.loads(place.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(data, dict):
            return data
    return {}


def major(version: str) -> str:
    return version.split(".")[0]
