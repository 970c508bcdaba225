"""Run files as text: strict YAML, `include`, overrides from the command line. What comes out is plain data.

1. A file is parsed strictly: a key given twice, a key that is no text and a value that JSON has no word for are refused.
2. The files of its `include:` list are merged beneath it, in order; paths are relative to the file that names them.
3. A plugin's section that is a bare name becomes `{use: name}`, so that it can be merged and overridden like a mapping.
4. Overrides (`rl.steps=3`, `sft=null`, `~rl`) are applied last, one after the other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ale.config_base import RULES_KEY, PluginChoice
from ale.errors import ConfigError
from ale.run_config import RunConfig
from ale.validation import model_in, one_line, shown

PLUGIN_PATHS = (
    "tasks", "scaffold", "sandbox", "reward", "engine", "trainer", "algorithm", "cpt.algorithm", "sft.algorithm",
    "endpoint.tool_format",
)  # fmt: skip
"""Where a run file names plugins; the last part of each path is the plugin's kind."""

ENTRY = re.compile(r"(sandbox|scaffold|reward)\.select\.\d+|tasks\.mix\.\d+|observers\.\d+")
"""Paths of plugin sections in lists."""

INCLUDE = "include"
MAX_DEPTH, MAX_VALUES = 50, 100_000
"""No run file comes near these; they stop anchors that refer to themselves or multiply without end."""


def read_run_file(path: Path) -> tuple[dict[str, Any], tuple[Path, ...]]:
    """The data of a file merged over its includes, and every file that was read. Raises `ConfigError`."""
    sources: list[Path] = []
    return _with_includes(path, (), sources), tuple(dict.fromkeys(sources))


def apply_override(data: dict[str, Any], override: str) -> None:
    """Apply `a.b=value` or `~a.b` in place. Raises `ConfigError`."""
    name, equals, text = override.partition("=")
    delete = override.startswith("~") and not equals
    keys = name.removeprefix("~" if delete else "").strip().split(".")
    if not all(keys) or not (equals or delete):
        raise ConfigError(
            f"The override {shown(override)} must look like key=value, such as rl.steps=3, or ~key to remove a key."
        )
    if delete:
        return _delete(data, keys, override)
    value = parse_yaml(text, f"The override {shown(override)}")
    section = _section(data, keys[:-1], override)
    path = ".".join(keys)
    parent = ".".join(keys[:-1])
    if isinstance(section, list):
        section[_index(section, keys[-1], parent, override)] = value
        return
    if path in PLUGIN_PATHS and isinstance(value, str):
        value = {"use": value}
    if keys[-1] == "use" and (parent in PLUGIN_PATHS or ENTRY.fullmatch(parent)) and section.get("use") != value:
        # another plugin: the settings of the one before mean nothing to it
        kept = {name: section[name] for name in ("when", "weight", "tags") if name in section and "." in parent}
        section.clear()
        section.update(kept)
    section[keys[-1]] = value
    _normalise(data)


def _index(items: list[Any], key: str, path: str, override: str) -> int:
    if not key.isdecimal() or int(key) >= len(items):
        raise ConfigError(
            f"The override {shown(override)}: '{path}' is a list of {len(items)}; name an entry by its number from 0."
        )
    return int(key)


def _section(data: dict[str, Any], keys: list[str], override: str) -> Any:
    """The mapping or list at a path; a mapping is made where the file has none."""
    node: Any = data
    for i, key in enumerate(keys):
        path = ".".join(keys[: i + 1])
        if isinstance(node, list):
            at = _index(node, key, ".".join(keys[:i]), override)
            if isinstance(node[at], str) and ENTRY.fullmatch(path):
                node[at] = {"use": node[at]}
            child = node[at]
        else:
            child = node.get(key)
        if child is None:
            # A section that the file leaves out has its default plugin; only that one knows what the key means.
            default = default_plugin(path)
            child = node[key] = {"use": default} if default else {}
        if not isinstance(child, dict | list):
            raise ConfigError(f"The override {shown(override)}: '{path}' is {shown(child)} and holds no keys.")
        node = child
    return node


def _delete(data: dict[str, Any], keys: list[str], override: str) -> None:
    node: Any = data
    holder: Any
    at: Any
    for i, key in enumerate(keys):
        holder, at = node, _index(node, key, ".".join(keys[:i]), override) if isinstance(node, list) else key
        if not isinstance(holder, list) and not (isinstance(holder, dict) and key in holder):
            raise ConfigError(f"The override {shown(override)}: the run file gives no '{'.'.join(keys)}' to remove.")
        node = holder[at]
    del holder[at]


def default_plugin(path: str) -> str | None:
    """The plugin that a section has when a run file leaves it out; None where there is no default."""
    if path not in PLUGIN_PATHS:
        return None
    model: Any = RunConfig
    *sections, last = path.split(".")
    for section in sections:
        model = model_in(model.model_fields[section].annotation)
    default = model.model_fields[last].default
    return default.use if isinstance(default, PluginChoice) else None


# -- includes --------------------------------------------------------------------------------------------------


def _with_includes(path: Path, above: tuple[Path, ...], sources: list[Path]) -> dict[str, Any]:
    by = f", which {above[-1]} includes" if above else ""
    try:
        here = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL in the name
        raise ConfigError(f"The run file {shown(str(path))}{by} cannot be read: {one_line(error)}.") from None
    if here in above:
        raise ConfigError(f"{path} includes itself: {' -> '.join(str(p) for p in (*above, here))}.")
    data = _read(path, by)
    sources.append(here)
    includes = data.pop(INCLUDE, None) or []
    if isinstance(includes, str):
        includes = [includes]
    if not isinstance(includes, list) or not all(isinstance(name, str) for name in includes):
        raise ConfigError(f"{path}: 'include' must be a list of files; it is {shown(includes)}.")
    _normalise(data)
    merged: dict[str, Any] = {}
    for name in includes:
        merged = _merge(merged, _with_includes(path.parent / name, (*above, here), sources))
    return _merge(merged, data)


def _normalise(data: dict[str, Any]) -> None:
    for path in PLUGIN_PATHS:
        *sections, last = path.split(".")
        node: Any = data
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        if isinstance(node, dict) and isinstance(node.get(last), str):
            node[last] = {"use": node[last]}


def _merge(base: Mapping[str, Any], over: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """`over` on `base`, mapping by mapping. A section that names another plugin replaces the whole section."""
    out = dict(base)
    for key, value in over.items():
        old, here = out.get(key), f"{path}{key}"
        if isinstance(old, dict) and isinstance(value, dict):
            several = RULES_KEY.get(here)
            other_plugin = here in PLUGIN_PATHS and (
                value.get("use", old.get("use")) != old.get("use") or (several in value) != (several in old)
            )
            out[key] = value if other_plugin else _merge(old, value, f"{here}.")
        else:
            out[key] = value
    return out


# -- YAML ------------------------------------------------------------------------------------------------------


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
        raise ConfigError(f"The run file {path}{by} cannot be read: {one_line(error)}.") from None
    data = parse_yaml(text, str(path))
    if not isinstance(data, dict):
        found = "empty" if data is None else f"a {'list' if isinstance(data, list) else 'single value'}"
        raise ConfigError(f"{path}{by} must hold keys and values, such as 'tasks: bash'; it is {found}.")
    return data


def parse_yaml(text: str, source: str) -> Any:
    """YAML as plain data. Raises `ConfigError` that names `source`, and line and column where there is one."""
    try:
        value = yaml.load(text, _StrictLoader)
    except RecursionError:
        raise ConfigError(f"{source}: the values are nested too deeply.") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or error.context or "this is not YAML"
        raise ConfigError(f"{source}{place}: {one_line(problem)}.") from None
    except Exception as error:  # PyYAML's constructors let KeyError, IndexError and others out, as for '!!bool x'
        raise ConfigError(f"{source}: this is not YAML: {one_line(error)}.") from None
    _check_plain(value, source, "", [MAX_VALUES], 0)
    return value


def _check_plain(value: Any, source: str, path: str, left: list[int], depth: int) -> None:
    where = f"{source}: '{path}'" if path else source
    left[0] -= 1
    if left[0] < 0 or depth > MAX_DEPTH:
        raise ConfigError(f"{source}: the values are nested too deeply, or an anchor repeats them too often.")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_plain(key, source, path, left, depth + 1)
            _check_plain(item, source, f"{path}.{key}" if path else key, left, depth + 1)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check_plain(item, source, f"{path}.{i}", left, depth + 1)
    elif isinstance(value, str):
        if re.search("[\ud800-\udfff]", value):
            raise ConfigError(f"{where} holds half a character (a surrogate), which no file can keep.")
    elif isinstance(value, float):
        if math.isnan(value):
            raise ConfigError(f"{where} is not a number (.nan).")
    elif value is not None and not isinstance(value, int):
        raise ConfigError(f"{where} is a {type(value).__name__}; write a number, a text, a list or a mapping.")


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key given twice is a mistake, `1e-3` is a number and `2026-01-01` is a text."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            problem = f"the key {shown(key)} is not a text; put it in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        if key in seen:
            problem = f"the key {shown(key)} is given twice"
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


class _StrictDumper(yaml.SafeDumper):
    """Puts quotes around the texts that `_StrictLoader` would take for something else."""


def _text(dumper: _StrictDumper, value: str) -> yaml.ScalarNode:
    # PyYAML writes these line breaks and marks as they are, and reads them as something else, unless in double quotes.
    style = '"' if re.search("[\x85\u2028\u2029\ufeff]", value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)


def dump_yaml(data: Any) -> str:
    """Plain data as YAML that `parse_yaml` reads back unchanged."""
    return yaml.dump(data, Dumper=_StrictDumper, sort_keys=False, allow_unicode=True, width=120)


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _mapping)
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)
_StrictDumper.yaml_implicit_resolvers = _StrictLoader.yaml_implicit_resolvers
_StrictDumper.add_representer(str, _text)
