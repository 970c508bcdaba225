"""This program finds out what only an import of a plugin can show. `ale_testing.import_check` starts it in a separate
process, so that effects of the import stay there."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ale.errors import AleError
from ale.registry.drivers import find_plugin, load_driver_class
from ale.registry.installed import PluginInfo
from ale.registry.validation import nearest_hint
from ale.specs.kinds import CAPABILITIES
from ale_config_tools import describe_keys


@dataclass(frozen=True)
class ImportFindings:
    """What the import found. `problem` is a sentence, or None; where the import failed the other fields are empty."""

    problem: str | None = None
    location: str = ""
    api_version: str = ""
    capabilities: tuple[str, ...] = ()
    config: tuple[tuple[str, ...], ...] = ()
    """Rows of (key, type, default, meaning)."""
    schema: dict[str, Any] = field(default_factory=dict)
    """JSON Schema of the plugin's `Config`."""


def examine(kind: str, name: str) -> ImportFindings:
    """In the child: load the plugin and look at what the registry demands and what the manifest says."""
    try:
        info = find_plugin(kind, name)
        cls = load_driver_class(kind, name)
    except AleError as error:
        return ImportFindings(str(error).removeprefix(f"{kind}: "))
    capabilities = tuple(sorted(cls.capabilities))
    module = sys.modules[cls.__module__ if cls.__module__ != "ale.registry.drivers" else info.target.partition(":")[0]]
    return ImportFindings(
        _describe_disagreement(info, capabilities),
        str(getattr(module, "__file__", "")),
        str(cls.api_version),
        capabilities,
        tuple(describe_keys(cls.Config)),
        cls.Config.model_json_schema(),
    )


def _describe_disagreement(info: PluginInfo, capabilities: tuple[str, ...]) -> str | None:
    """A sentence where the class contradicts its manifest, by which runs choose, or has an unknown capability."""
    if set(capabilities) != set(info.capabilities):
        return (
            f"Its class can do {', '.join(capabilities) or 'nothing special'}, its ale-plugin.json says "
            f"{', '.join(sorted(info.capabilities)) or 'nothing'}; write the same into both."
        )
    known = CAPABILITIES[info.kind]
    for word in capabilities:
        if word not in known and "." not in word:
            return (
                f"There is no capability '{word}' of kind {info.kind}.{nearest_hint(word, known)} "
                "One of the plugin's own has a dot, such as 'acme.migrate'."
            )
    return None


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(asdict(examine(sys.argv[1], sys.argv[2]))))
    sys.stdout.flush()
    os._exit(0)  # threads that the plugin left cannot hold it
