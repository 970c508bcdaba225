"""`ale config diff A B`: the settings in which two runs differ, including the defaults of core and plugins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ale.config.plugin_field import choices_in
from ale.config.references import redact_json
from ale.registry.drivers import load_plugin
from ale.specs.choice import PluginChoice, PluginRules
from ale.store.run_store import CONFIG_NAME
from ale_train.config.load import load_run_config


def print_differences(first: Path, second: Path) -> bool:
    """Print one line per difference; return whether there is any. `first` and `second` are run files or run folders."""
    one, two = (dict(_read_settings(path)) for path in (first, second))
    different = [key for key in dict.fromkeys([*one, *two]) if one.get(key) != two.get(key)]
    for key in different:
        print(f"{key}: {one.get(key, '(absent)')} -> {two.get(key, '(absent)')}")
    return bool(different)


def _read_settings(path: Path) -> Iterator[tuple[str, str]]:
    """Every setting of a run: (YAML path, value as JSON), references in place of secrets."""
    loaded = load_run_config(path / CONFIG_NAME if path.is_dir() else path)
    kinds = {id(choice): kind for _, kind, choice in choices_in(loaded.run)}
    for key, value in _flatten("", _plain(loaded.run, kinds)):
        yield key, redact_json(json.dumps(value, ensure_ascii=False, default=str), loaded.values.redact)


def _plain(value: Any, kinds: dict[int, str]) -> Any:
    """A section as it could stand in a run file, with every default."""
    if isinstance(value, PluginRules):
        return {value.key: [_plain(rule, kinds) for rule in value.rules]}
    if isinstance(value, PluginChoice):
        own = {name: getattr(value, name) for name in type(value).model_fields if name != "settings"}
        return {**own, **load_plugin(kinds[id(value)], value).config.model_dump(mode="json")}
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name), kinds) for name in type(value).model_fields}
    if isinstance(value, tuple):
        return [_plain(item, kinds) for item in value]
    return value


def _flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The single values of nested mappings, and of lists of mappings."""
    inner = f"{path}." if path else ""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _flatten(f"{inner}{name}", item)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for i, item in enumerate(value):
            yield from _flatten(f"{inner}{i}", item)
    else:
        yield path, value
