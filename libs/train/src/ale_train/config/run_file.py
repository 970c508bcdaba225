"""Reads run files: YAML, `include`, and overrides from the command line. The result is plain data.

1. A file is read as YAML (`yaml_text.py`).
2. The files of its `include:` list are merged beneath it, in order; paths are relative to the file that names them.
3. A plugin's section that is a bare name becomes `{use: name}`, so that it can be merged and overridden like a mapping.
   Files in which plugins are (`./mine.py:Mine`) get absolute paths (`user_files.py`).
4. Overrides (`rl.steps=3`, `sft=null`, `~rl`) are applied last, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ale.config.plugin_field import PluginPlace, plugin_places
from ale.config.yaml_text import parse_yaml
from ale.errors import ConfigError
from ale.registry.validation import format_value, one_line_error
from ale_train.config.run import RunConfig
from ale_train.config.user_files import resolve_files, resolve_use

INCLUDE = "include"


@cache
def _places() -> dict[str, PluginPlace]:
    """Return the places of a run file that name plugins, by their paths."""
    return {place.path: place for place in plugin_places(RunConfig)}


def read_run_file(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a file and merge it over its includes; `above` are the files that include it. Raises `ConfigError`."""
    by = f", which {above[-1]} includes" if above else ""
    try:
        here = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # for example a loop of links, or a NUL in the name
        raise ConfigError(
            f"The run file {format_value(str(path))}{by} cannot be read: {one_line_error(error)}."
        ) from None
    if here in above:
        raise ConfigError(f"{path} includes itself: {' -> '.join(str(p) for p in (*above, here))}.")
    data = _read(path, by)
    includes = data.pop(INCLUDE, None) or []
    if isinstance(includes, str):
        includes = [includes]
    if not isinstance(includes, list) or not all(isinstance(name, str) for name in includes):
        raise ConfigError(f"{path}: 'include' must be a list of files; it is {format_value(includes)}.")
    _normalise(data)
    resolve_files(data, path.parent)
    merged: dict[str, Any] = {}
    for name in includes:
        merged = _merge(merged, read_run_file(path.parent / name, (*above, here)))
    return _merge(merged, data)


def apply_override(data: dict[str, Any], override: str) -> None:
    """Apply `a.b=value` or `~a.b` in place. Raises `ConfigError`."""
    name, equals, text = override.partition("=")
    delete = override.startswith("~") and not equals
    keys = name.removeprefix("~" if delete else "").strip().split(".")
    if not all(keys) or not (equals or delete):
        raise ConfigError(
            f"The override {format_value(override)} must look like key=value, such as rl.steps=3, or ~key to remove a "
            "key."
        )
    if delete:
        return _delete(data, keys, override)
    value = parse_yaml(text, f"The override {format_value(override)}")
    section = _section(data, keys[:-1], override)
    parent = ".".join(keys[:-1])
    if isinstance(section, list):
        section[_index(section, keys[-1], parent, override)] = value
        resolve_files(data, Path.cwd())
        return
    place = _place_at(parent)
    if keys[-1] == "use" and isinstance(value, str):
        value = resolve_use(value, Path.cwd())
    if keys[-1] == "use" and place is not None and section.get("use") != value:
        # The override names another plugin, which does not know the settings of the previous one.
        own = place.several.rule().model_fields if place.several and place.is_entry(parent) else ()
        kept = {name: section[name] for name in own if name in section}
        section.clear()
        section.update(kept)
    section[keys[-1]] = value
    _normalise(data)
    resolve_files(data, Path.cwd())


def _index(items: list[Any], key: str, path: str, override: str) -> int:
    if not key.isdecimal() or int(key) >= len(items):
        raise ConfigError(
            f"The override {format_value(override)}: '{path}' is a list of {len(items)}; "
            "name an entry by its number from 0."
        )
    return int(key)


def _section(data: dict[str, Any], keys: list[str], override: str) -> Any:
    """Return the mapping or list at a path; a mapping is made if the file has none."""
    node: Any = data
    for i, key in enumerate(keys):
        path = ".".join(keys[: i + 1])
        if isinstance(node, list):
            at = _index(node, key, ".".join(keys[:i]), override)
            if isinstance(node[at], str) and _place_at(path) is not None:
                node[at] = {"use": node[at]}
            child = node[at]
        else:
            child = node.get(key)
        if child is None:
            # A section that the file leaves out has its default plugin; only that plugin knows what the key means.
            place = _places().get(path)
            default = place.default if place else None
            child = node[key] = {"use": default} if default else {}
        if not isinstance(child, dict | list):
            raise ConfigError(
                f"The override {format_value(override)}: '{path}' is {format_value(child)} and holds no keys."
            )
        node = child
    return node


def _delete(data: dict[str, Any], keys: list[str], override: str) -> None:
    node: Any = data
    holder: Any
    at: Any
    for i, key in enumerate(keys):
        holder, at = node, _index(node, key, ".".join(keys[:i]), override) if isinstance(node, list) else key
        if not isinstance(holder, list) and not (isinstance(holder, dict) and key in holder):
            raise ConfigError(
                f"The override {format_value(override)}: the run file gives no '{'.'.join(keys)}' to remove."
            )
        node = holder[at]
    del holder[at]


def _place_at(path: str) -> PluginPlace | None:
    """Return the place of a plugin section, or of the list that the section is an entry of."""
    return next((place for place in _places().values() if path == place.path or place.is_entry(path)), None)


# -- includes --------------------------------------------------------------------------------------------------


def _normalise(data: dict[str, Any]) -> None:
    for place in _places().values():
        *sections, last = place.path.split(".")
        node: Any = data
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        if not place.is_list and isinstance(node, dict) and isinstance(node.get(last), str):
            node[last] = {"use": node[last]}


def _merge(base: Mapping[str, Any], over: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Merge `over` onto `base`, mapping by mapping. A section that names another plugin replaces the whole section."""
    out = dict(base)
    for key, value in over.items():
        old, here = out.get(key), f"{path}{key}"
        if isinstance(old, dict) and isinstance(value, dict):
            place = _places().get(here)
            several = place.several.key if place and place.several else None
            names_one = "use" in value or several in value
            other_plugin = place and (
                value.get("use", old.get("use")) != old.get("use")
                or (names_one and (several in value) != (several in old))
            )
            out[key] = value if other_plugin else _merge(old, value, f"{here}.")
        else:
            out[key] = value
    return out


def _read(path: Path, by: str) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"There is no run file {path}{by}.") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}{by} is a folder, not a run file.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}{by} is not text in UTF-8 (see byte {error.start}).") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"The run file {path}{by} cannot be read: {one_line_error(error)}.") from None
    data = parse_yaml(text, str(path))
    if not isinstance(data, dict):
        found = "empty" if data is None else f"a {'list' if isinstance(data, list) else 'single value'}"
        raise ConfigError(f"{path}{by} must hold keys and values, such as 'tasks: bash'; it is {found}.")
    return data
