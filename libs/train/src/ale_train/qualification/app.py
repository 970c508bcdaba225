"""The command line of `ale tasks`: arguments and help. `commands` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ale.cli.out_option import out_option
from ale_train.commands.arguments import Overrides, RunFile

tasks_app = typer.Typer(help="Find tasks that are fit to learn from.", no_args_is_help=True, rich_markup_mode=None)
Split = Annotated[str, typer.Option(metavar="NAME", help="Split of the task source.")]
Count = Annotated[int | None, typer.Option(min=1, help="How many tasks to take, from the first on; default: all.")]
Repeats = Annotated[int, typer.Option(min=1, help="How often each check is made, each time in a fresh sandbox.")]


@tasks_app.command("check")
def tasks_check(
    file: RunFile,
    overrides: Overrides = None,
    split: Split = "train",
    count: Count = None,
    repeats: Repeats = 3,
    out: Annotated[Path | None, out_option("Report to write, as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that each task's reference solution passes, that its tests fail on the untouched environment, and that
    verdicts do not change. The exit code is 1 if a task fails a check. A task without tests, or whose reward judges
    what an agent says, is only read.

    With --out, an interrupted check continues when it is started again.
    """
    from ale_train.qualification.commands import check

    raise typer.Exit(check(file, overrides or [], split=split, count=count, repeats=repeats, out=out, as_json=as_json))


@tasks_app.command("select")
def tasks_select(
    file: RunFile,
    out: Annotated[Path, out_option("Report to write, as JSON; rl.instances reads it.")],
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

    An interrupted selection continues when it is started again.
    """
    from ale_train.qualification.commands import select

    raise typer.Exit(
        select(
            file,
            overrides or [],
            policies=policy or [],
            attempts=attempts,
            min_pass=min_pass,
            max_pass=max_pass,
            out=out,
            split=split,
            count=count,
            repeats=repeats,
            as_json=as_json,
        )
    )
