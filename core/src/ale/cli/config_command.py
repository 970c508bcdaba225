"""`ale config validate`, and `describe`: every key with its type, default and meaning."""

from __future__ import annotations

from pathlib import Path

from ale.cli.plugins_command import print_table
from ale.config.load import load_run_config
from ale.config.preflight import preflight, which_half
from ale.config.run import RunConfig
from ale.errors import ConfigError
from ale.registry.drivers import load_driver_class
from ale.registry.installed import list_plugins
from ale.registry.validation import describe_keys


def validate(file: Path, overrides: list[str], only: str, source: Path | None) -> None:
    """Check a run file and its plugins' settings, and check that the plugins can do what the run needs."""
    preflight(load_run_config(file, overrides).run, which_half(only), source)
    print(f"{file} is valid.")


def describe(kind: str | None, name: str | None) -> None:
    """Print the keys of a run file, or of a plugin's section."""
    if kind is None:
        rows = describe_keys(RunConfig)
    else:
        names = ", ".join(info.name for info in list_plugins(kind)) or "none"
        if name is None:
            raise ConfigError(f"Which {kind} plugin? Installed: {names}.")
        rows = describe_keys(load_driver_class(kind, name, kind).Config)
    print_table([("KEY", "TYPE", "DEFAULT", "MEANING"), *rows])
