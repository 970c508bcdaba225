"""`ale config describe`."""

from __future__ import annotations

from typing import Annotated

import typer

from ale.cli.plugins_command import print_table
from ale.config.run import RunConfig
from ale.errors import ConfigError
from ale.registry.drivers import load_driver_class
from ale.registry.installed import list_plugins
from ale_config_tools.keys import describe_keys


def describe(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="A kind of plugin.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A plugin of that kind.")] = None,
) -> None:
    """Every key with type, default and meaning: of a run file, or of a plugin."""
    if kind is None:
        rows = describe_keys(RunConfig)
    else:
        names = ", ".join(info.name for info in list_plugins(kind)) or "none"
        if name is None:
            raise ConfigError(f"Which {kind} plugin? Installed: {names}.")
        rows = describe_keys(load_driver_class(kind, name, kind).Config)
    print_table([("KEY", "TYPE", "DEFAULT", "MEANING"), *rows])
