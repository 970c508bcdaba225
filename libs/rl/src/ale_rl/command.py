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
    episodes: Annotated[int | None, typer.Option(min=1, help="Held-out episodes.")] = None,
) -> None:
    """Held-out success of a policy, without training."""
    from ale_rl.eval_command import evaluate

    evaluate(target, model, episodes, overrides or [])
