"""`ale config show`, `ale config validate` and `ale config describe`. They import what they need when they run, so that
`ale --help` is instant."""

from __future__ import annotations

from typing import Annotated

import typer

from ale_train.commands.arguments import ForkOfRun, FromRun, Half, Overrides, RunFile


def show(file: RunFile, overrides: Overrides = None) -> None:
    """The resolved configuration of a run file."""
    from ale_train.config.load import load_run_config

    print(load_run_config(file, overrides or []).to_yaml(), end="")


def validate(
    file: RunFile, overrides: Overrides = None, only: Half = "all", source: FromRun = None, fork: ForkOfRun = None
) -> None:
    """Check what `ale run` with the same arguments checks before its first episode, data too, and count the tasks."""
    import asyncio

    from ale.store.output_files import check_folder
    from ale_train.config.load import load_run_config
    from ale_train.pipeline.data_checks import check_data
    from ale_train.pipeline.preflight import plan_run
    from ale_train.pipeline.stages import read_half
    from ale_train.rl.fork import find_fork, load_fork

    start = None if fork is None else find_fork(fork)
    loaded = load_run_config(file, overrides or []) if start is None else load_fork(file, overrides or [], start)
    plan = plan_run(loaded, read_half(only), source, start)
    check_folder(loaded.run.run_dir, "folder of runs (run_dir)")
    for line in asyncio.run(check_data(plan)):
        print(line)
    print(f"{file} is valid.")


def describe(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="A kind of plugin, or a section such as rl or sft.")
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A plugin of that kind.")] = None,
) -> None:
    """Every key with type, default and meaning: of a run file, of one of its sections, or of a plugin."""
    from ale.cli.plugins_command import print_table
    from ale.config.keys import describe_keys
    from ale.errors import ConfigError
    from ale.registry.drivers import load_driver_class
    from ale.registry.installed import list_plugins
    from ale.specs.kinds import ALL_KINDS, plugin_noun
    from ale_train.config.run import RunConfig

    rows = describe_keys(RunConfig)
    section = f"{kind}.{name}." if name else f"{kind}."
    if kind is None:
        pass
    elif (own := [row for row in rows if row[0].startswith(section)]) and kind not in ALL_KINDS:
        rows = own
    else:
        names = ", ".join(info.name for info in list_plugins(kind)) or "none"
        if name is None:
            raise ConfigError(f"Which {plugin_noun(kind)}? Installed: {names}.")
        beside = [row for row in rows if row[0].startswith(f"{kind}.")]  # such as tasks.overlong
        rows = describe_keys(load_driver_class(kind, name, kind).Config) + beside
    print_table([("KEY", "TYPE", "DEFAULT", "MEANING"), *rows])
