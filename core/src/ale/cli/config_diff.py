"""`ale config --diff A B`: what two runs do differently, the defaults of the core and of every plugin counted in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ale.config import load_run_config
from ale.config_base import PluginChoice, PluginRule, PluginRules
from ale.plugins import load_driver_class, validated_settings
from ale.references import redact_json
from ale.store import CONFIG_NAME


def diff(first: Path, second: Path) -> int:
    """Print a line a difference; 1 where there is one, as diff(1) does. A and B are run files or run folders."""
    one, two = (dict(_effective(path)) for path in (first, second))
    keys = list(dict.fromkeys([*one, *two]))
    different = [key for key in keys if one.get(key) != two.get(key)]
    for key in different:
        print(f"{key}: {one.get(key, '(absent)')} -> {two.get(key, '(absent)')}")
    return 1 if different else 0


def _effective(path: Path) -> Iterator[tuple[str, str]]:
    """Every setting of a run: (YAML path, value as JSON), references in place of secrets."""
    loaded = load_run_config(path / CONFIG_NAME if path.is_dir() else path)
    for key, value in _leaves("", loaded.run, ""):
        yield key, redact_json(json.dumps(value, ensure_ascii=False, default=str), loaded.values.redact)


def _leaves(path: str, value: Any, kind: str) -> Iterator[tuple[str, Any]]:
    inner = f"{path}." if path else ""
    if isinstance(value, PluginRules):
        key = "mix" if kind == "tasks" else "select"
        for i, rule in enumerate(value.rules):
            yield from _leaves(f"{inner}{key}.{i}", rule, kind)
    elif isinstance(value, PluginChoice):
        yield f"{inner}use", value.use
        if isinstance(value, PluginRule):
            yield from ((f"{inner}{name}", getattr(value, name)) for name in ("when", "weight", "tags"))
        cls = load_driver_class(kind, value.use, path)
        settings = validated_settings(cls, value.settings, path).model_dump(mode="json")
        yield from _leaves(path, settings, "")
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _leaves(f"{inner}{name}", getattr(value, name), name)
    elif isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _leaves(f"{inner}{name}", item, kind)
    elif isinstance(value, tuple) and value and isinstance(value[0], PluginChoice):
        for i, item in enumerate(value):
            yield from _leaves(f"{inner}{i}", item, "hooks")
    elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        for i, item in enumerate(value):
            yield from _leaves(f"{inner}{i}", item, "")
    else:
        yield path, value
