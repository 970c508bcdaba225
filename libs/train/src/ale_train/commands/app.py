"""The arguments of `ale run`, `ale eval` and `ale show`. The code that does the work is imported when a command runs,
so that `ale --help` is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ale.cli.out_option import out_option
from ale_train.commands.arguments import ForkOfRun, FromRun, Half, Overrides, RunFile


def run_(
    file: RunFile,
    overrides: Overrides = None,
    only: Half = "all",
    source: FromRun = None,
    fork: ForkOfRun = None,
    out: Annotated[Path | None, out_option("Run folder to write; default: a new one in run_dir.", "FOLDER")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="FILE is a run folder: go on where it was, or after its end (rl.steps=N)."),
    ] = False,
) -> None:
    """Execute a run; the last line is the path of its summary.json."""
    from ale_train.commands.run_command import run

    run(file, overrides or [], only, source, fork, out, resume)


def eval_(
    target: Annotated[Path, typer.Argument(metavar="RUN|FILE", help="A run folder, or a run file with --model.")],
    overrides: Overrides = None,
    model: Annotated[Path | None, typer.Option(help="Model folder; default: the run's most trained policy.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Most held-out episodes (eval.episodes).")] = None,
    n: Annotated[int | None, typer.Option("--n", min=1, help="Episodes of each task, for pass@k (eval.n).")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME", help="Only this set of eval.sets; several times.")
    ] = None,
    out: Annotated[Path | None, out_option("Run folder to write; default: a new one in run_dir.", "FOLDER")] = None,
) -> None:
    """Held-out success of a policy, without training."""
    from ale_train.commands.evaluate_command import evaluate

    evaluate(target, model, overrides or [], episodes=episodes, n=n, sets=sets or [], out=out)


def show_(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    episode: Annotated[
        str | None, typer.Argument(metavar="[EPISODE]", help="Show this episode: its id, or a beginning of it.")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only episodes that failed or were rejected.")] = False,
    tag: Annotated[str | None, typer.Option(help="Only episodes of tasks with this tag.")] = None,
    step: Annotated[int | None, typer.Option(help="Only episodes of this step.")] = None,
    stage: Annotated[str | None, typer.Option(help="Only episodes of this stage, such as rl or eval.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most episodes to list, the newest ones.")] = 20,
    full: Annotated[bool, typer.Option("--full", help="Show long texts of an episode whole.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """A run's state, failures and episodes, or one episode turn by turn; also while the run goes on."""
    from ale_train.commands.show_command import show
    from ale_train.show.episode_rows import Filters

    show(folder, episode, Filters(failed, tag, step, stage), limit, full, as_json)
