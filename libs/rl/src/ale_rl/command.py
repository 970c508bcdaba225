"""The command line loads `ale eval` from here; the code that does the work is imported when the command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ale.cli.arguments import Overrides


def eval_(
    target: Annotated[Path, typer.Argument(metavar="RUN|FILE", help="A run folder, or a run file with --model.")],
    overrides: Overrides = None,
    model: Annotated[Path | None, typer.Option(help="Model folder; default: the run's most trained policy.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Most held-out episodes (eval.episodes).")] = None,
    n: Annotated[int | None, typer.Option("--n", min=1, help="Episodes of each task, for pass@k (eval.n).")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME", help="Only this set of eval.sets; several times.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to write; default: a new one in run_dir.")] = None,
) -> None:
    """Held-out success of a policy, without training."""
    from ale_rl.eval_command import evaluate

    evaluate(target, model, overrides or [], episodes=episodes, n=n, sets=sets or [], out=out)
