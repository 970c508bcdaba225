"""`ale config show` and `ale config validate`. They import what they need when they run, so that `ale --help` is
instant."""

from __future__ import annotations

from ale.cli.arguments import FromRun, Half, Overrides, RunFile


def show(file: RunFile, overrides: Overrides = None) -> None:
    """The resolved configuration of a run file."""
    from ale.config.load import load_run_config

    print(load_run_config(file, overrides or []).to_yaml(), end="")


def validate(file: RunFile, overrides: Overrides = None, only: Half = "all", source: FromRun = None) -> None:
    """Check what `ale run` with the same arguments checks before anything starts."""
    from ale.config.load import load_run_config
    from ale.config.preflight import preflight, which_half

    preflight(load_run_config(file, overrides or []).run, which_half(only), source)
    print(f"{file} is valid.")
