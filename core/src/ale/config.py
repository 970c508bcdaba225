"""Run configuration: YAML -> OmegaConf (interpolation) -> pydantic (`RunConfig` and each named plugin's `Config`).

1. `run_file` reads the file with its includes and applies the overrides.
2. OmegaConf resolves `${...}` (`references.py`); the outcome is plain data, with and without secrets.
3. Each plugin's section is split into the plugin's name and its own settings; `RunConfig` checks the rest.
4. The named plugins, and only they, are imported, and check their settings with their `Config`.
Whatever is wrong in steps 3 and 4 is collected: one sentence a mistake, one line each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ale.config_base import PluginChoice
from ale.errors import AleError, ConfigError
from ale.plugins import load_driver_class, validated_settings
from ale.references import Resolved, resolve
from ale.run_config import RunConfig
from ale.run_file import PLUGIN_PATHS, apply_override, dump_yaml, read_run_file
from ale.sections import chosen, keys_beside, plugins_of, sections_of
from ale.specs.kinds import HOOKS
from ale.validation import validated


@dataclass(frozen=True)
class LoadedConfig:
    """A validated run configuration: `run` typed, the plain data it comes from, and the files that was read from."""

    run: RunConfig
    values: Resolved
    sources: tuple[Path, ...] = ()

    @property
    def resolved(self) -> dict[str, Any]:
        """The data that the run uses, secrets included."""
        return self.values.data

    def to_yaml(self) -> str:
        """A run file that loads to the same configuration; it refers to the environment where this one did."""
        return dump_yaml(self.values.file)


def load_run_config(path: Path | str, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read, merge, resolve and validate a run file. Raises `ConfigError`."""
    data, sources = read_run_file(Path(path))
    for override in overrides:
        apply_override(data, override)
    values = resolve(data, str(path))
    try:
        run = validated_run(values.data)
        if run.endpoint.upstream is not None and run.endpoint.upstream.key is not None:
            _check_reference(values.public["endpoint"]["upstream"]["key"], values.data["endpoint"]["upstream"]["key"])
        return LoadedConfig(run, values, sources)
    except AleError as error:  # it shows values
        raise type(error)(values.redact(str(error))) from None


def _check_reference(public: str, value: str) -> None:
    """Refuse a secret that stands in the run file itself: it would stand in every run folder too. Raises `ConfigError`."""
    if public == value:
        raise ConfigError(
            "endpoint.upstream.key: write ${oc.env:NAME} with the name of the environment variable that holds the key; "
            "a key in a run file would be copied into every run folder."
        )


def validated_run(data: Mapping[str, Any]) -> RunConfig:
    """Plain data as a `RunConfig` whose plugins exist and accept their settings. Raises `ConfigError`."""
    mistakes: list[str] = []
    shaped = dict(data)
    for path in PLUGIN_PATHS:
        *outer, last = path.split(".")
        sections: Any = shaped
        for name in outer:
            if isinstance(sections, dict) and isinstance(sections.get(name), dict):
                sections[name] = dict(sections[name])
            sections = sections.get(name) if isinstance(sections, dict) else None
        if not isinstance(sections, dict):
            continue  # no `cpt` or `sft`, or something else in its place, of which RunConfig will complain
        try:
            sections[last] = plugins_of(path, sections)
        except ConfigError as error:
            mistakes.append(str(error))
            sections[last] = PluginChoice(use="?")
    if isinstance(shaped.get("observers"), list):
        found = []
        for i, item in enumerate(shaped["observers"]):
            try:
                found.append(chosen(f"observers.{i}", HOOKS, item))
            except ConfigError as error:
                mistakes.append(str(error))
        shaped["observers"] = found
    run: RunConfig | None = None
    try:
        run = validated(RunConfig, shaped)
    except ConfigError as error:
        mistakes.insert(0, str(error))
    for path, kind, choice in sections_of(shaped):
        try:
            validated_settings(load_driver_class(kind, choice.use, path), choice.settings, path, keys_beside(path))
        except AleError as error:
            mistakes.append(str(error))
    for path, choice in run.sft.algorithms() if run is not None and run.sft is not None and not mistakes else ():
        try:
            validated_settings(load_driver_class("algorithm", choice.use, path), choice.settings, path)
        except AleError as error:
            mistakes.append(str(error))
    if mistakes or run is None:
        raise ConfigError("\n".join(mistakes))
    return run
