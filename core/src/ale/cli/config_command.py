"""`ale config validate`, and `describe`: every key with its type, default and meaning."""

from __future__ import annotations

from pathlib import Path

from ale.capabilities import check_capabilities
from ale.cli.plugins_command import print_table
from ale.config import load_run_config
from ale.config_base import PluginChoice
from ale.errors import ConfigError
from ale.installed import list_plugins
from ale.pipeline.run import check
from ale.plugins import load_driver_class
from ale.run_config import RunConfig
from ale.validation import describe as describe_model


def validate(file: Path, overrides: list[str]) -> None:
    """Check a run file, its plugins' settings, and that they can do what the run needs."""
    run = load_run_config(file, overrides).run
    only_rollout = ""
    try:
        check(run, "all", None)
    except ConfigError as error:
        check(run, "rollout", None)
        only_rollout = f", with '--only rollout' alone: {error}"
    check_capabilities(run, train=not only_rollout and run.trains)
    print(f"{file} is valid{only_rollout or '.'}")


def describe(kind: str | None, name: str | None) -> None:
    """Print the keys of a run file, or of a plugin's section."""
    if kind is None:
        rows = describe_model(RunConfig, plugin=PluginChoice)
    else:
        names = ", ".join(info.name for info in list_plugins(kind)) or "none"
        if name is None:
            raise ConfigError(f"Which {kind} plugin? Installed: {names}.")
        rows = describe_model(load_driver_class(kind, name, kind).Config)
    print_table([("KEY", "TYPE", "DEFAULT", "MEANING"), *rows])
