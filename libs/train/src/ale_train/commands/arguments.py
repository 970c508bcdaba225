"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFile = Annotated[Path, typer.Argument(metavar="FILE", help="The run file (YAML).")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings that win over the file, such as rl.steps=3."),
]
Half = Annotated[str, typer.Option("--only", help="Half of the loop: rollout (keep a dump) or train (on a dump).")]
FromRun = Annotated[
    Path | None, typer.Option("--from", metavar="RUN", help="Run folder to take the policy or the dump from.")
]
ForkOfRun = Annotated[
    str | None,
    typer.Option(
        "--fork",
        metavar="RUN[@STEP]",
        help="Begin with weights, optimizer and curriculum of a run's checkpoint: its newest, or that of a step.",
    ),
]
