"""Loads a run file: YAML -> OmegaConf (interpolation) -> pydantic (`RunConfig` and each named plugin's `Config`).

1. `run_file` reads the file with its includes and applies the overrides; files of the user's get absolute paths.
2. OmegaConf resolves `${...}` (`references.py`); the results are plain data, once with and once without secrets.
3. `RunConfig` validates it; its fields that name plugins import only those plugins, and check their settings. All
   mistakes of step 3 are collected: each gets one sentence on one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from ale.config.references import Resolved, resolve
from ale.config.yaml_text import dump_yaml
from ale.errors import AleError, ConfigError
from ale.registry.drivers import load_plugin
from ale.registry.validation import validate
from ale_train.config.run import RunConfig
from ale_train.config.run_file import apply_override, read_run_file
from ale_train.config.user_files import UserFile, read_files


@dataclass(frozen=True)
class LoadedConfig:
    """A validated run configuration: `run` is typed, and the other fields are the plain data from which it was made."""

    run: RunConfig
    values: Resolved = field(repr=False)
    files: tuple[UserFile, ...] = field(default=(), repr=False)
    """The files of the user's that it names, as they were imported."""

    def to_yaml(self) -> str:
        """Return a run file that loads to the same configuration; it keeps the references to the environment."""
        return dump_yaml(self.values.file)


def load_run_config(path: Path | str, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read, merge, resolve and validate a run file. Raises `ConfigError`."""
    data = read_run_file(Path(path))
    for override in overrides:
        apply_override(data, override)
    values = resolve(data, str(path))
    try:
        run = validate(RunConfig, values.data)
        for path, kind, choice in run.plugins():
            _check_secrets(path, load_plugin(kind, choice, path).config, set(choice.settings), values)
        return LoadedConfig(run, values, read_files(values.data, run))
    except AleError as error:  # its message shows values
        raise ConfigError(values.redact(str(error))) from None


def _check_secrets(path: str, config: BaseModel, given: set[str], values: Resolved) -> None:
    """Refuse a secret that is written in the run file itself, since every run folder would then hold it. Raises
    `ConfigError`."""
    for name, value in config:
        if name not in given or not isinstance(value, SecretStr):
            continue
        public: Any = values.public
        for key in (*path.split("."), name):
            public = public[int(key) if isinstance(public, list) else key]
        if public == value.get_secret_value():
            raise ConfigError(
                f"{path}.{name}: write ${{oc.env:NAME}} with the name of the environment variable that holds it; a "
                "secret in a run file would be copied into every run folder."
            )
