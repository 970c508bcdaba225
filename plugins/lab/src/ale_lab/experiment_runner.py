"""One experiment from beginning to end: warm starts, search, arms, probes; then the picture, the table and the
numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean

from ale.errors import ConfigError
from ale_lab.curve_summaries import SUMMARIES
from ale_lab.earlier_results import Cost, EarlierResults
from ale_lab.experiment import Arm, Experiment, Series
from ale_lab.figure import draw
from ale_lab.hyperparameter_search import (
    Choice,
    apply_choices,
    best_choice,
    describe_search,
    learning_rate_trials,
    setting_trials,
)
from ale_lab.make_runs import make_runs, unfinished_runs
from ale_lab.read_runs import read_arm, read_cost, read_run
from ale_lab.results import Results, format_table, write_results
from ale_lab.run_plan import Plan, Run


@dataclass(frozen=True)
class ExperimentRunner:
    """Runs experiments in the folder `out`: `jobs` runs at once, or none (`draw_only`). `log` gets a line for each run
    that ends."""

    out: Path
    jobs: int = 1
    quick: bool = False
    draw_only: bool = False
    log: Callable[[str], None] = print

    @property
    def plan(self) -> Plan:
        """Which runs there are, and where."""
        return Plan(self.out, self.quick)

    async def run_experiment(
        self,
        experiment: Experiment,
        seeds: Sequence[int],
        search_seeds: Sequence[int] = (),
        known: EarlierResults | None = None,
    ) -> Results:
        """Make the runs that are neither finished nor `known`, and read all of them. Raises `ConfigError`, and
        `AleError` where runs failed."""
        known = known or EarlierResults()
        notes: tuple[str, ...] = ()
        chosen: dict[str, Choice] = {}
        source = experiment.tuned_as or experiment
        if source.searches:
            earlier = known.choices(source)
            search_seeds = known.search_seeds if earlier else search_seeds
            if both := sorted(set(seeds) & set(search_seeds)):
                raise ConfigError(f"The seeds {', '.join(map(str, both))} are those of the search; report others.")
            chosen = earlier or await self._search(source, search_seeds)
            notes = (describe_search(source, chosen, search_seeds),)
            experiment = apply_choices(experiment, chosen)
        settings = {arm.name: self.plan.settings(experiment, arm) for arm in experiment.arms}
        pairs = [(arm, seed) for seed in seeds for arm in experiment.arms]
        made = [(arm, seed) for arm, seed in pairs if not known.has(experiment, settings[arm.name], seed)]
        await self._make_arms(experiment, made)
        if (probe := experiment.probe) is not None:
            await self._make([run for arm, seed in made for _, run in self.plan.probes(experiment, probe, arm, seed)])
        series: dict[str, dict[int, Series]] = {arm.name: {} for arm in experiment.arms}
        costs: dict[str, dict[int, Cost]] = {arm.name: {} for arm in experiment.arms}
        for arm, seed in pairs:
            key = settings[arm.name], seed
            if (arm, seed) in made:
                series[arm.name][seed] = read_arm(self.plan, experiment, arm, seed)
                costs[arm.name][seed] = read_cost(self.plan.folder(experiment, arm, seed))
            else:
                series[arm.name][seed] = known.series[key]
                if key in known.costs:
                    costs[arm.name][seed] = known.costs[key]
        searched = tuple(search_seeds) if chosen else ()
        return Results(
            experiment=experiment,
            seeds=tuple(seeds),
            series=series,
            costs=costs,
            notes=notes,
            tuned=chosen,
            search_seeds=searched,
            settings=settings,
            quick=self.quick,
        )

    async def _search(self, experiment: Experiment, seeds: Sequence[int]) -> dict[str, Choice]:
        """The best of each arm's trials: the learning rates of all arms, then the settings of all."""
        searches = experiment.searches
        if self.quick:
            searches = tuple(replace(s, rates=s.rates[:1], values=s.values[:2]) for s in searches)

        def score(arm: Arm) -> float:
            by = experiment.judged_by
            curves = [read_run(self.plan.folder(experiment, arm, seed))[by.series] for seed in seeds]
            return fmean(SUMMARIES[by.summary](curve) for curve in curves)

        first = [learning_rate_trials(experiment, search) for search in searches]
        await self._make_arms(experiment, product((arm for tried in first for arm in tried.values()), seeds))
        second = [
            setting_trials(experiment, search, best_choice(tried, score).rate)
            for search, tried in zip(searches, first, strict=True)
        ]
        await self._make_arms(experiment, product((arm for tried in second for arm in tried.values()), seeds))
        return {search.arm: best_choice(tried, score) for search, tried in zip(searches, second, strict=True)}

    async def _make_arms(self, experiment: Experiment, wanted: Iterable[tuple[Arm, int]]) -> None:
        pairs = sorted(wanted, key=lambda pair: pair[1])  # seed by seed; otherwise as they come
        warm = [self.plan.warm_start(experiment, seed) for seed in dict.fromkeys(seed for _, seed in pairs)]
        runs = [self.plan.arm(experiment, arm, seed) for arm, seed in pairs]
        if not self.draw_only:
            unfinished_runs([*warm, *runs])  # reports wrong settings of an arm before its warm start is made
        await self._make(warm)
        await self._make(runs)

    async def _make(self, runs: Sequence[Run]) -> None:
        if not self.draw_only:
            await make_runs(runs, self.jobs, self.log)
            return
        if missing := unfinished_runs(runs):
            raise ConfigError(
                f"There is no finished run for '{missing[0].name}' in {missing[0].folder} ({len(missing)} are "
                "missing); leave --draw-only out to make them."
            )


def write_outputs(results: Results, folder: Path) -> list[Path]:
    """Print the table; write it, the picture and the data. Returns the files."""
    print(format_table(results))
    write_results(results, folder)
    picture = folder / "figure.png"
    draw(results, picture)
    return [folder / "table.md", folder / "data.json", picture]
