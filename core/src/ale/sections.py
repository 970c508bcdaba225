"""The plugin sections of a run file: a name, a mapping with `use`, or several plugins under `select` or `mix`.

sandbox:
  select:
    - {when: docker, use: docker}         # the first rule that fits a task decides ...
    - {when: [swe, "!heavy"], use: podman}
    - {use: local, weight: 3}             # ... and neighbours with the same `when` share by weight
    - {use: local, weight: 1, isolation: none}
tasks:
  mix:
    - {use: bash, weight: 3}
    - {use: bash, include: graded, tags: hard}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ale.config_base import OWN_KEYS, RULES_KEY, PluginChoice, PluginRule, PluginRules
from ale.errors import ConfigError
from ale.installed import list_plugins
from ale.run_file import PLUGIN_PATHS, default_plugin
from ale.specs.kinds import HOOKS
from ale.validation import nearest, shown, validated

OPTIONAL_PLUGINS = frozenset({"engine", "trainer"})
"""Sections that may be null."""


def plugins_of(path: str, sections: Mapping[str, Any]) -> PluginChoice | PluginRules | None:
    """What a section names, or its default; None where it is null and may be. Raises `ConfigError`, a line a mistake."""
    kind = path.rpartition(".")[2]
    if kind not in sections:
        default = default_plugin(path)
        if default is not None:
            return PluginChoice(use=default)
        raise ConfigError(f"{path}: this key is missing; name {_a(kind)} plugin. Installed: {_names(kind)}.")
    section = sections[kind]
    if section is None and kind in OPTIONAL_PLUGINS:
        return None
    key = RULES_KEY.get(kind)
    if key is not None and path == kind and isinstance(section, dict) and key in section:
        return _rules(path, kind, key, section)
    return chosen(path, kind, section)


def sections_of(shaped: Mapping[str, Any]) -> Iterator[tuple[str, str, PluginChoice]]:
    """Every plugin of a configuration whose sections were split: YAML path, kind, choice. The unreadable are left out."""
    for path in PLUGIN_PATHS:
        value: Any = shaped
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        kind = path.rpartition(".")[2]
        if isinstance(value, PluginRules):
            yield from ((f"{path}.{RULES_KEY[kind]}.{i}", kind, rule) for i, rule in enumerate(value.rules))
        elif isinstance(value, PluginChoice) and value.use != "?":
            yield path, kind, value
    observers = shaped.get("observers")
    for i, choice in enumerate(observers if isinstance(observers, list) else ()):
        yield f"observers.{i}", HOOKS, choice


def chosen(path: str, kind: str, section: Any) -> PluginChoice:
    """One plugin from a name or a mapping with `use`. Raises `ConfigError`."""
    if isinstance(section, str):
        return PluginChoice(use=section)
    if not isinstance(section, dict):
        raise ConfigError(
            f"{path}: must be the name of {_a(kind)} plugin, or a mapping with 'use' (it is {shown(section)}). "
            f"Installed: {_names(kind)}."
        )
    use = section.get("use")
    if not isinstance(use, str):
        found = f"must be a name (it is {shown(use)})" if "use" in section else "this key is missing"
        for key in section:
            meant = nearest(key, keys_beside(path))
            if meant and "use" not in section and key not in keys_beside(path):
                raise ConfigError(f"{path}.{key}: there is no such key.{meant} It says which {kind} plugin.")
        raise ConfigError(f"{path}.use: {found}; it says which {kind} plugin. Installed: {_names(kind)}.")
    return PluginChoice(use=use, settings={k: v for k, v in section.items() if k != "use"})


def keys_beside(path: str) -> tuple[str, ...]:
    """The keys of a plugin section at this path that are not the plugin's."""
    kind, _, rest = path.partition(".")
    if rest and kind in RULES_KEY:
        return OWN_KEYS[RULES_KEY[kind]]
    return ("use", RULES_KEY[kind]) if kind in RULES_KEY else ("use",)


def _rules(path: str, kind: str, key: str, section: Mapping[str, Any]) -> PluginRules:
    others = [name for name in section if name != key]
    if others:
        hint = nearest(others[0], [key]) if len(others) == 1 else ""
        raise ConfigError(
            f"{path}.{others[0]}: beside '{key}' a section has no key; it belongs into its entries.{hint}"
        )
    entries = section[key]
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path}.{key}: must be a list of plugin sections (it is {shown(entries)}).")
    rules: list[PluginRule] = []
    mistakes: list[str] = []
    for i, entry in enumerate(entries):
        where = f"{path}.{key}.{i}"
        try:
            choice = chosen(where, kind, entry)
            own = {name: choice.settings[name] for name in OWN_KEYS[key] if name in choice.settings}
            settings = {name: value for name, value in choice.settings.items() if name not in own}
            rules.append(validated(PluginRule, {"use": choice.use, "settings": settings, **own}, where))
        except ConfigError as error:
            mistakes.append(str(error))
    if not mistakes:
        mistakes = list(_unreachable(f"{path}.{key}", rules)) if key == "select" else []
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return PluginRules(rules=tuple(rules))


def _unreachable(path: str, rules: list[PluginRule]) -> Iterator[str]:
    """Rules after one that takes every task."""
    for i in range(1, len(rules)):
        if any(not rule.when for rule in rules[:i]) and rules[i].when:
            yield f"{path}.{i}: no task comes here, since a rule above it has no 'when' and takes them all; move it up."


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeio" else f"a {kind}"


def _names(kind: str) -> str:
    return ", ".join(sorted({info.name for info in list_plugins(kind)})) or "none"
