"""The commands `ale lab` and `ale config diff`. What does the work is imported when a command runs.

`ale lab EXPERIMENT` runs an experiment over seeds, draws its figure and writes its table; finished runs are not made
again. `ale lab simulate` predicts what asynchronous and multiplexed training would bring.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ale.cli.out_option import out_option
from ale.errors import ConfigError
from ale_lab.catalogue import COMPARE, FIG10, FIG10_MISMATCH, FIG12, FIG13, MISMATCH, PARTS, STALENESS
from ale_lab.experiment import Experiment

lab_app = typer.Typer(
    name="lab",
    help="Compare algorithms over several seeds: curves with intervals, tables.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

MAX_SEEDS = 1000
Seeds = Annotated[str, typer.Option(metavar="N,M,A-B", help="Seeds: numbers, ranges.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at once; each keeps about one core busy.")]
Out = Annotated[Path, out_option("Where runs, pictures and tables go.", "FOLDER")]
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
            _run_experiment(
                experiment=experiment,
                seeds=seeds,
                jobs=jobs,
                out=out,
                quick=quick,
                draw_only=draw_only,
                known=known,
                search_seeds=search_seeds,
            )
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
            _run_experiment(
                experiment=experiment, seeds=seeds, jobs=jobs, out=out, quick=quick, draw_only=draw_only, known=known
            )


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
    from ale.store.output_files import check_folder
    from ale_lab.earlier_results import read_earlier_results
    from ale_lab.experiment_runner import ExperimentRunner, write_outputs

    chosen = (1,) if quick else read_seeds(seeds, "--seeds")
    searched = () if search_seeds is None else read_seeds(search_seeds, "--search-seeds")
    check_folder(out, "folder of the lab")
    lab = ExperimentRunner(out.resolve() / ("quick" if quick else "."), jobs, quick, draw_only, print)
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


@lab_app.command("simulate")
def simulate(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="A run folder: calibrate on every second step of it, predict the others."),
    ] = None,
    out: Annotated[Path, out_option("Where figure and table go.", "FOLDER")] = Path("runs/simulate"),
    scene: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="YAML with your machines, trainer and workload (docs: Simulate before you rent)."
        ),
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Simulate published runs: which part of their gain comes from what.")
    ] = False,
) -> None:
    """Simulate the loop on many machines, with the real sample buffer: timelines, the curve over rl.async_ratio."""
    if run is not None:
        from ale_lab.simulation.calibrate import predict

        found = predict(run)
        print(
            f"{run}: a step takes {found.measured_s:.2f} s, simulated {found.simulated_s:.2f} s ({found.error:+.1%}; "
            f"{found.steps} steps that calibrated nothing)"
        )
        return
    from ale.store.output_files import check_folder, write_output

    if published:
        from ale_lab.simulation.published_results import tables

        print(tables(), end="")
        return
    from ale_lab.simulation.machine_scenarios import (
        RATIOS,
        Scenario,
        curve,
        draw,
        read_scenario,
        summarize,
        table,
        ways,
    )

    check_folder(out, "folder of the simulation")
    simulated = Scenario() if scene is None else read_scenario(scene)
    found_ways = ways(simulated)
    curves = {
        name: [
            summarize(f"async_ratio {ratio}, ahead {min(ratio, most)}", simulation)
            for ratio, simulation in curve(most, simulated).items()
        ]
        for name, most in (("ahead 1", 1), ("ahead = async_ratio", max(RATIOS)))
    }
    summaries = [summarize(name, simulation) for name, simulation in found_ways.items()]
    text = "\n".join(map(table, (summaries, *curves.values())))
    print(text)
    draw(found_ways, curves, out / "figure.png")
    for path in (out / "figure.png", write_output(out / "table.md", text)):
        print(path)


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A run file or a run folder.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
) -> None:
    """Print the settings in which two run files or run folders differ; the exit code is 1 if there are any."""
    from ale_lab.config_diff import print_differences

    raise typer.Exit(int(print_differences(first, second)))


_add_command(FIG10, ", each tuned by the same search")
_add_command(FIG12)
_add_command(FIG13)
_add_command(COMPARE, ", each tuned by the same search")
_add_command(PARTS, ", on the tasks of `compare` and tuned as there")
_add_command(STALENESS, "; tuned as in `compare`")
_add_command(MISMATCH, "; tuned as in `compare`")
_add_command(FIG10_MISMATCH, "; tuned as in `fig10`")
