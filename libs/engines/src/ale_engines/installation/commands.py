"""`ale engine`: installs, lists and removes the Python environments of engines' servers."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

engine_app = typer.Typer(help="Servers that engines run on.", no_args_is_help=True, rich_markup_mode=None)


@engine_app.command("install")
def engine_install(
    server: Annotated[str, typer.Argument(metavar="vllm|sglang", help="The server.")],
    cpu: Annotated[bool, typer.Option("--cpu", help="The build for machines without a GPU.")] = False,
    torch_index: Annotated[
        str,
        typer.Option(
            "--torch-index",
            metavar="URL",
            help="Package index to look into for torch too; with --cpu, one of CPU builds, unless pip's has them.",
        ),
    ] = "",
) -> None:
    """Install a server in the version that this release of ALE was tested with; does nothing where it is installed.

    Prints the path of its Python. It takes one or two minutes and 3 to 4 GB (--cpu), more for GPUs.
    """
    from ale.cli.signals import run_until_signal
    from ale_engines.installation.install import install
    from ale_engines.server.python_environments import CPU, CUDA, pinned_environment

    environment = pinned_environment(server, CPU if cpu else CUDA)
    run_until_signal(lambda: install(environment, torch_index, _show))
    print(environment.python)


@engine_app.command("list")
def engine_list(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the servers that are installed."""
    from ale.cli.plugins_command import print_table
    from ale_engines.server.python_environments import engines_folder, installed_environments

    found = installed_environments()
    if as_json:
        each = [{"name": e.name, "used": e.pinned, "python": str(e.python)} for e in found]
        print(json.dumps(each, indent=2))
    elif found:
        rows = [(e.name, "this release" if e.pinned else "another release", str(e.python)) for e in found]
        print_table([("NAME", "FOR", "PYTHON"), *rows])
    else:
        print(f"No server is installed in {engines_folder()}; `ale engine install vllm` installs one.")


@engine_app.command("remove")
def engine_remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="As `ale engine list` lists them.")],
) -> None:
    """Remove installed servers; one that runs at that time fails."""
    from ale.cli.signals import run_until_signal
    from ale_engines.installation.install import remove

    async def remove_each() -> None:
        for name in names:
            await remove(name, _show)

    run_until_signal(remove_each)


def _show(line: str) -> None:
    print(line, file=sys.stderr)
