"""The commands `ale tasks ...`, as a user types them; what they do is in `tasks_command`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ale.cli.arguments import Overrides, RunFile

tasks_app = typer.Typer(help="Whether tasks are fit to learn from.", no_args_is_help=True, rich_markup_mode=None)
Split = Annotated[str, typer.Option(metavar="NAME", help="Split of the task source.")]
Count = Annotated[int | None, typer.Option(min=1, help="Look at the first so many tasks; default: all.")]
Repeats = Annotated[int, typer.Option(min=1, help="Times that each check is made, in a fresh sandbox each.")]


@tasks_app.command("check")
def tasks_check(
    file: RunFile,
    overrides: Overrides = None,
    split: Split = "train",
    count: Count = None,
    repeats: Repeats = 3,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Report to write, as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Do reference solutions pass, untouched environments fail, and verdicts stay? The exit code is 1 where one does not.

    With --out, what is interrupted goes on when it is started again.
    """
    from ale.cli.tasks_command import check

    raise typer.Exit(check(file, overrides or [], split, count, repeats, out, as_json))


@tasks_app.command("select")
def tasks_select(
    file: RunFile,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Report to write, as JSON; rl.instances reads it.")],
    overrides: Overrides = None,
    policy: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="Model folder; may be repeated. Default: the run file's."),
    ] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Rollouts of each task with each policy.")] = 4,
    min_pass: Annotated[float, typer.Option(min=0, max=1, help="Lowest mean pass rate that is kept.")] = 0.1,
    max_pass: Annotated[float, typer.Option(min=0, max=1, help="Highest mean pass rate that is kept.")] = 0.9,
    split: Split = "train",
    count: Count = None,
    repeats: Repeats = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Keep the tasks that are sound and neither too easy nor too hard for the policies: real rollouts, scored.

    What is interrupted goes on when it is started again.
    """
    from ale.cli.tasks_command import select

    raise typer.Exit(
        select(file, overrides or [], policy or [], attempts, min_pass, max_pass, out, split, count, repeats, as_json)
    )
