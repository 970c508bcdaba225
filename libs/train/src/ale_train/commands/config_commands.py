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
        str | None, typer.Argument(metavar="[KIND]", help="A section such as rl, a key, or a kind of plugin.")
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A plugin of that kind.")] = None,
) -> None:
    """Every key with type, default and meaning: of a run file, of one of its sections, or of a plugin."""
    from ale_train.commands import describe_command

    describe_command.describe(kind, name)
