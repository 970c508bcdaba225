"""`ale cluster`: shows what a run has on its nodes, and changes how much while it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

cluster_app = typer.Typer(help="Runs on a cluster.", no_args_is_help=True, rich_markup_mode=None)
COLUMNS = ("role", "name", "node", "pid", "devices", "state", "version")
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]


@cluster_app.command("status")
def cluster_status(run: Run, as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Show each actor of a run: its role, node, devices and state."""
    from rich.console import Console
    from rich.table import Table

    from ale_ray.control_files import FOLDER, KILLED, read_roles

    data = read_roles(run / FOLDER)
    if as_json:
        print(json.dumps(data, indent=1))
        return
    table = Table(*COLUMNS, title=f"{run.name} ({data['state']})")
    for row in data["roles"]:
        name = f"{row['name']} ({row['part']})" if "part" in row else row["name"]
        table.add_row(*(str((row | {"name": name})[key]) for key in COLUMNS))
    Console().print(table)
    if data["state"] == KILLED:
        print("Its process has ended without a word, and so have its actors: these are the states of the last moment.")
        print(f"`ale run --resume {run}` goes on with it.")


@cluster_app.command("scale")
def cluster_scale(
    run: Run,
    change: Annotated[str, typer.Argument(metavar="ROLE=N", help="engine=N or rollout=N.")],
) -> None:
    """Have a run go on with another number of engines or rollout workers."""
    from ale.errors import ConfigError
    from ale_ray.control_files import FOLDER, read_roles, request_scale

    role, _, number = change.partition("=")
    if role not in ("engine", "rollout") or not number.isdecimal():
        raise ConfigError(
            f"'{change}': say engine=N or rollout=N, with a whole number. The trainer's ranks cannot change while it "
            "trains: stop the run, and go on with another cluster.trainer.ranks (ale run --resume)."
        )
    read_roles(run / FOLDER)
    print(request_scale(run / FOLDER, role, int(number)))
