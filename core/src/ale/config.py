"""Run configuration: YAML -> OmegaConf (interpolation) -> pydantic (`RunConfig` and each named plugin's `Config`).

1. `run_file` reads the file with its includes and applies the overrides.
2. OmegaConf resolves `${...}`; the outcome is plain data, kept as `LoadedConfig.resolved`.
3. Each plugin's section is split into the plugin's name and its own settings; `RunConfig` checks the rest.
4. The named plugins, and only they, are imported, and check their settings with their `Config`.
Whatever is wrong in steps 3 and 4 is collected: one sentence a mistake, one line each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ale.errors import AleError, ConfigError
from ale.installed import list_plugins
from ale.plugins import load_driver_class, validated_settings
from ale.run_config import PluginChoice, RunConfig
from ale.run_file import PLUGIN_PATHS, apply_override, default_plugin, dump_yaml, read_run_file
from ale.specs.kinds import HOOKS
from ale.validation import one_line, shown, validated

OPTIONAL_PLUGINS = frozenset({"trainer"})
"""Sections that may be null."""


@dataclass(frozen=True)
class LoadedConfig:
    """A validated run configuration: `run` typed, `resolved` as plain data, and the files it was read from."""

    run: RunConfig
    resolved: dict[str, Any]
    sources: tuple[Path, ...] = ()

    def to_yaml(self) -> str:
        """The resolved configuration as a run file that loads to the same configuration."""
        return dump_yaml(_escaped(self.resolved))


def load_run_config(path: Path | str, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read, merge, resolve and validate a run file. Raises `ConfigError`."""
    data, sources = read_run_file(Path(path))
    for override in overrides:
        apply_override(data, override)
    resolved = _resolved(data, str(path))
    return LoadedConfig(validated_run(resolved), resolved, sources)


def validated_run(data: Mapping[str, Any]) -> RunConfig:
    """Plain data as a `RunConfig` whose plugins exist and accept their settings. Raises `ConfigError`."""
    mistakes: list[str] = []
    shaped = dict(data)
    choices: list[tuple[str, PluginChoice]] = []
    for path in PLUGIN_PATHS:
        *outer, last = path.split(".")
        sections: Any = shaped
        for name in outer:
            if isinstance(sections, dict) and isinstance(sections.get(name), dict):
                sections[name] = dict(sections[name])
            sections = sections.get(name) if isinstance(sections, dict) else None
        if not isinstance(sections, dict):
            continue  # no `sft`, or something else in its place, of which RunConfig will complain
        try:
            choice = _choice(path, sections)
        except ConfigError as error:
            mistakes.append(str(error))
            choice = None
        if choice is not None:
            choices.append((path, choice))
        if last in sections or choice is None:
            absent = last in OPTIONAL_PLUGINS and sections.get(last) is None
            sections[last] = choice or (None if absent else PluginChoice(use="?"))
    if isinstance(shaped.get("observers"), list):
        shaped["observers"] = [_observer(i, item, choices, mistakes) for i, item in enumerate(shaped["observers"])]
    run: RunConfig | None = None
    try:
        run = validated(RunConfig, shaped)
    except ConfigError as error:
        mistakes.insert(0, str(error))
    for path, choice in choices:
        try:
            kind = HOOKS if path.startswith("observers.") else path.rpartition(".")[2]
            validated_settings(load_driver_class(kind, choice.use, path), choice.settings, path)
        except AleError as error:
            mistakes.append(str(error))
    if mistakes or run is None:
        raise ConfigError("\n".join(mistakes))
    return run


def _choice(path: str, sections: Mapping[str, Any]) -> PluginChoice | None:
    """The plugin that a section names, or its default; None where it is null and may be."""
    kind = path.rpartition(".")[2]
    if kind not in sections:
        default = default_plugin(path)
        if default is not None:
            return PluginChoice(use=default)
        raise ConfigError(f"{path}: this key is missing; name {_a(kind)} plugin. Installed: {_names(kind)}.")
    section = sections[kind]
    if section is None and kind in OPTIONAL_PLUGINS:
        return None
    return _chosen(path, kind, section)


def _observer(i: int, item: Any, choices: list[tuple[str, PluginChoice]], mistakes: list[str]) -> PluginChoice:
    """An entry of `observers`; a mistake in it is kept, and something valid stands in its place."""
    path = f"observers.{i}"
    try:
        choice = _chosen(path, HOOKS, item)
    except ConfigError as error:
        mistakes.append(str(error))
        return PluginChoice(use="?")
    choices.append((path, choice))
    return choice


def _chosen(path: str, kind: str, section: Any) -> PluginChoice:
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
        raise ConfigError(f"{path}.use: {found}; it says which {kind} plugin. Installed: {_names(kind)}.")
    return PluginChoice(use=use, settings={k: v for k, v in section.items() if k != "use"})


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeio" else f"a {kind}"


def _names(kind: str) -> str:
    return ", ".join(sorted({info.name for info in list_plugins(kind)})) or "none"


def _resolved(data: dict[str, Any], source: str) -> dict[str, Any]:
    """The data with every `${...}` replaced."""
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(data), resolve=True, throw_on_missing=True)
    except RecursionError:
        raise ConfigError(f"{source}: an interpolation ${{...}} refers to itself.") from None
    except OmegaConfBaseException as error:
        where = getattr(error, "full_key", None) or source
        hint = (
            "" if isinstance(error, MissingMandatoryValue) else " A text that is no interpolation is written \\${...}."
        )
        raise ConfigError(f"{where}: {one_line(str(error).partition('    full_key:')[0])}.{hint}") from None
    assert isinstance(resolved, dict)
    return resolved  # type: ignore[return-value]


def _escaped(value: Any) -> Any:
    """Texts with `${` in them as OmegaConf must find them to leave them as they are."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", value)
    return value
