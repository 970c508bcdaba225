"""`ale lab`: run an experiment over seeds, draw its figure, write its table. Finished runs are not made again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ale.errors import ConfigError
from ale_lab.catalogue import COMPARE, FIG10, FIG10_MISMATCH, FIG12, FIG13, MISMATCH, PARTS, STALENESS
from ale_lab.experiment import Experiment
from ale_lab.simulate_command import simulate

lab_app = typer.Typer(
    name="lab",
    help="Compare algorithms over several seeds: curves with intervals, tables.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

MAX_SEEDS = 1000
Seeds = Annotated[str, typer.Option(metavar="N,M,A-B", help="Seeds: numbers, ranges.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at once; each keeps about one core busy.")]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Where runs, pictures and tables go.")]
Quick = Annotated[bool, typer.Option("--quick", help="One seed, two steps, a smaller model: shows that it works.")]
DrawOnly = Annotated[bool, typer.Option("--draw-only", help="Draw finished runs; make none.")]
SearchSeeds = Annotated[str, typer.Option(metavar="N,M,A-B", help="Seeds of the search; none is reported.")]
KnownIn = Annotated[
    list[Path] | None,
    typer.Option("--known", metavar="FILE", help="A data.json of an earlier lab: its searches and runs are reused."),
]
DEFAULT_OUT = Path("runs/lab")


def _add_command(experiment: Experiment, how: str = "") -> None:
    about = f"{experiment.title}{how}."
    if (experiment.tuned_as or experiment).searches:

        @lab_app.command(experiment.name, help=about)
        def run_with_search(
            seeds: Seeds = "1-5",
            jobs: Jobs = 1,
            out: Out = DEFAULT_OUT,
            quick: Quick = False,
            draw_only: DrawOnly = False,
            search_seeds: SearchSeeds = "101",
            known: KnownIn = None,
        ) -> None:
            _run_experiment(experiment, seeds, jobs, out, quick, draw_only, known, search_seeds)
    else:

        @lab_app.command(experiment.name, help=about)
        def run_without_search(
            seeds: Seeds = "1-5",
            jobs: Jobs = 1,
            out: Out = DEFAULT_OUT,
            quick: Quick = False,
            draw_only: DrawOnly = False,
            known: KnownIn = None,
        ) -> None:
            _run_experiment(experiment, seeds, jobs, out, quick, draw_only, known)


def _run_experiment(
    experiment: Experiment,
    seeds: str,
    jobs: int,
    out: Path,
    quick: bool,
    draw_only: bool,
    known: list[Path] | None,
    search_seeds: str | None = None,
) -> None:
    from ale_lab.earlier_results import read_earlier_results
    from ale_lab.lab import Lab, write_outputs

    chosen = (1,) if quick else read_seeds(seeds, "--seeds")
    searched = () if search_seeds is None else read_seeds(search_seeds, "--search-seeds")
    lab = Lab(out.resolve() / ("quick" if quick else "."), jobs, quick, draw_only, print)
    earlier = read_earlier_results(known or (), quick)
    from ale.cli.signals import run_until_signal  # not above: `ale --help` imports this module

    results = run_until_signal(lambda: lab.run_experiment(experiment, chosen, searched, earlier))
    for path in write_outputs(results, lab.out / experiment.name):
        print(path)


def read_seeds(text: str, option: str) -> tuple[int, ...]:
    """`1,3-5` as numbers, each once. Raises `ConfigError`."""
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = first, last if dash else first
        if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high) < int(low) + MAX_SEEDS):
            raise ConfigError(f"{option} takes numbers and ranges, such as 1,2,5 or 1-5, not '{text}'.")
        found |= dict.fromkeys(range(int(low), int(high) + 1))
    return tuple(found)


_add_command(FIG10, ", each tuned by the same search")
_add_command(FIG12)
_add_command(FIG13)
_add_command(COMPARE, ", each tuned by the same search")
_add_command(PARTS, ", on the tasks of `compare` and tuned as there")
_add_command(STALENESS, "; tuned as in `compare`")
_add_command(MISMATCH, "; tuned as in `compare`")
_add_command(FIG10_MISMATCH, "; tuned as in `fig10`")
lab_app.command("simulate")(simulate)
