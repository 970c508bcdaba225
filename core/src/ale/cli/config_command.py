"""`ale config describe`: every key with its type, default and meaning."""

from __future__ import annotations

from ale.cli.plugins_command import print_table
from ale.config import describe as describe_model
from ale.errors import ConfigError
from ale.installed import list_plugins
from ale.plugins import load_driver_class
from ale.run_config import RunConfig
from ale.specs.kinds import KINDS


def describe(kind: str | None, name: str | None) -> None:
    """Print the keys of a run file, or of a plugin's section."""
    if kind is None:
        rows = describe_model(RunConfig)
    else:
        if kind not in KINDS:
            raise ConfigError(f"There is no kind '{kind}'; the kinds are {', '.join(KINDS)}.")
        if name is None:
            names = ", ".join(info.name for info in list_plugins(kind)) or "none"
            raise ConfigError(f"Which {kind} plugin? Installed: {names}.")
        rows = describe_model(load_driver_class(kind, name, kind).Config)
    print_table([("KEY", "TYPE", "DEFAULT", "MEANING"), *rows])
