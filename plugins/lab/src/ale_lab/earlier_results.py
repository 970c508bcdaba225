"""Results of earlier labs, read from their `data.json`: the settings that a search found, and the series of runs.

A run of an earlier lab is used again where its run file, its overrides, its warm start (together `Plan.settings`) and
its seed are the same. So run folders may be lost, and an experiment can be continued on another machine. Nothing checks
whether the code has changed in the meantime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ValidationError

from ale.errors import ConfigError
from ale_lab.experiment import Curve, Experiment, Series
from ale_lab.hyperparameter_search import Choice

Cost = tuple[float, float]


class _Arm(BaseModel):
    settings: str
    series: dict[str, dict[int, Curve]]
    costs: dict[int, Cost] = {}


class _Data(BaseModel):
    quick: bool
    seeds: list[int]
    arms: dict[str, _Arm]
    tuned: dict[str, Choice]
    search_seeds: list[int]


@dataclass(frozen=True, slots=True)
class EarlierResults:
    """Choices by arm; series and costs (seconds, rollouts; where they were kept) by settings and seed."""

    tuned: Mapping[str, Choice] = field(default_factory=dict)
    search_seeds: tuple[int, ...] = ()
    series: Mapping[tuple[str, int], Series] = field(default_factory=dict)
    costs: Mapping[tuple[str, int], Cost] = field(default_factory=dict)

    def choices(self, experiment: Experiment) -> dict[str, Choice] | None:
        """What a search found for each arm that the experiment tunes; None where one is missing."""
        wanted = [search.arm for search in experiment.searches]
        return {arm: self.tuned[arm] for arm in wanted} if all(arm in self.tuned for arm in wanted) else None

    def has(self, experiment: Experiment, settings: str, seed: int) -> bool:
        """Whether every series that the experiment shows of this run is known."""
        return set(experiment.series_names) <= self.series.get((settings, seed), {}).keys()


def read_earlier_results(paths: Iterable[Path], quick: bool = False) -> EarlierResults:
    """Read several `data.json`; series of a run that is in two of them are joined. Raises `ConfigError`."""
    tuned: dict[str, Choice] = {}
    searched: dict[int, None] = {}
    series: dict[tuple[str, int], Series] = {}
    costs: dict[tuple[str, int], Cost] = {}
    for path in paths:
        data = _read(path)
        if data.quick != quick:
            raise ConfigError(f"--known {path} is {'' if data.quick else 'not '}of a lab with --quick; leave it out.")
        searched |= dict.fromkeys(data.search_seeds)
        for name, choice in data.tuned.items():
            if tuned.setdefault(name, choice) != choice:
                raise ConfigError(
                    f"--known {path} has other settings for '{name}' than a file before it; leave one out."
                )
        for arm in data.arms.values():
            costs |= {(arm.settings, seed): cost for seed, cost in arm.costs.items()}
            for seed in data.seeds:
                of_seed = {name: curves[seed] for name, curves in arm.series.items() if seed in curves}
                series.setdefault((arm.settings, seed), {}).update(of_seed)
    return EarlierResults(tuned, tuple(searched), series, costs)


def _read(path: Path) -> _Data:
    try:
        return _Data.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"--known {path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"--known {path} is not the data.json of an `ale lab` experiment: {where}: {first['msg']}."
        ) from None
