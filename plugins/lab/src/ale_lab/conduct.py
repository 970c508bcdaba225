"""One experiment from beginning to end: warm starts, search, arms, probes; then the picture, the table and the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean

from ale.errors import ConfigError
from ale_lab.drawing import draw
from ale_lab.experiment import Arm, Experiment, Series
from ale_lab.intervals import SUMMARIES
from ale_lab.known import Cost, Known
from ale_lab.plan import Plan, Run
from ale_lab.reading import cost, read_arm, read_run
from ale_lab.results import Results, table, write
from ale_lab.running import left_of, make
from ale_lab.search import Choice, best, note, rates, tuned, values


@dataclass(frozen=True)
class Lab:
    """Where experiments are made, and how: `jobs` runs at once, or none (`draw_only`); `tell` hears what is done."""

    out: Path
    jobs: int = 1
    quick: bool = False
    draw_only: bool = False
    tell: Callable[[str], None] = print

    @property
    def plan(self) -> Plan:
        """Which runs there are, and where."""
        return Plan(self.out, self.quick)

    async def conduct(
        self, experiment: Experiment, seeds: Sequence[int], search_seeds: Sequence[int] = (), known: Known | None = None
    ) -> Results:
        """Make what is neither there nor `known`, and read it. Raises `ConfigError`, and `AleError` where runs failed."""
        known = known or Known()
        notes: tuple[str, ...] = ()
        chosen: dict[str, Choice] = {}
        source = experiment.tuned_as or experiment
        if source.searches:
            earlier = known.choices(source)
            search_seeds = known.search_seeds if earlier else search_seeds
            if both := sorted(set(seeds) & set(search_seeds)):
                raise ConfigError(f"The seeds {', '.join(map(str, both))} are those of the search; report others.")
            chosen = earlier or await self._search(source, search_seeds)
            notes = (note(source, chosen, search_seeds),)
            experiment = tuned(experiment, chosen)
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
                costs[arm.name][seed] = cost(self.plan.folder(experiment, arm, seed))
            else:
                series[arm.name][seed] = known.series[key]
                if key in known.costs:
                    costs[arm.name][seed] = known.costs[key]
        searched = tuple(search_seeds) if chosen else ()
        return Results(experiment, tuple(seeds), series, costs, notes, chosen, searched, settings, self.quick)

    async def _search(self, experiment: Experiment, seeds: Sequence[int]) -> dict[str, Choice]:
        """The best of each arm's trials: the learning rates of all arms, then the settings of all."""
        searches = experiment.searches
        if self.quick:
            searches = tuple(replace(s, rates=s.rates[:1], values=s.values[:2]) for s in searches)

        def score(arm: Arm) -> float:
            by = experiment.judged_by
            curves = [read_run(self.plan.folder(experiment, arm, seed))[by.series] for seed in seeds]
            return fmean(SUMMARIES[by.summary](curve) for curve in curves)

        first = [rates(experiment, search) for search in searches]
        await self._make_arms(experiment, product((arm for tried in first for arm in tried.values()), seeds))
        second = [
            values(experiment, search, best(tried, score).rate) for search, tried in zip(searches, first, strict=True)
        ]
        await self._make_arms(experiment, product((arm for tried in second for arm in tried.values()), seeds))
        return {search.arm: best(tried, score) for search, tried in zip(searches, second, strict=True)}

    async def _make_arms(self, experiment: Experiment, wanted: Iterable[tuple[Arm, int]]) -> None:
        pairs = sorted(wanted, key=lambda pair: pair[1])  # seed by seed; otherwise as they come
        warm = [self.plan.warm_start(experiment, seed) for seed in dict.fromkeys(seed for _, seed in pairs)]
        runs = [self.plan.arm(experiment, arm, seed) for arm, seed in pairs]
        if not self.draw_only:
            left_of([*warm, *runs])  # what an arm lacks is told before a warm start is made for it
        await self._make(warm)
        await self._make(runs)

    async def _make(self, runs: Sequence[Run]) -> None:
        if not self.draw_only:
            await make(runs, self.jobs, self.tell)
            return
        if missing := left_of(runs):
            raise ConfigError(
                f"There is no finished run for '{missing[0].name}' in {missing[0].folder} ({len(missing)} are missing); "
                "leave --draw-only out to make them."
            )


def conclude(results: Results, folder: Path) -> list[Path]:
    """Print the table; write it, the picture and the data. Returns the files."""
    print(table(results))
    write(results, folder)
    picture = folder / "figure.png"
    draw(results, picture)
    return [folder / "table.md", folder / "data.json", picture]
